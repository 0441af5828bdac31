// SPDX-License-Identifier: Apache-2.0
// Logging through spdlog, the only file that includes it.
#include "base/log.h"

#include <cerrno>
#include <chrono>
#include <mutex>
#include <poll.h>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/json_writer.h"
#include "base/log_settings.h"

namespace koho::log {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPatienceMs = 1000;
constexpr std::chrono::seconds kSlow{10};  // after a loss, without patience

/// Whether a line can be written within `ms`: into a pipe that nobody reads it cannot.
bool has_room(int ms) {
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&room, 1, ms);
  } while (ready < 0 && errno == EINTR);
  return ready != 0;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

/// The state of logging: one logger to standard error, and how it writes.
struct Sink {
  std::shared_ptr<spdlog::logger> logger;
  Level lowest = Level::info;
  Format format = Format::automatic;
  std::int64_t rank = -1;  // none
  bool json = false;
  std::mutex writing;
  std::uint64_t lost = 0;  // lines, since one was written
  Clock::time_point lost_at = Clock::now() - kSlow;

  Sink() : logger(spdlog::stderr_color_mt("koho")) { apply(); }

  void apply() {
    json = format == Format::json || (format == Format::automatic && isatty(STDERR_FILENO) == 0);
    logger->set_level(spdlog_level(lowest));
    const std::string number = std::to_string(rank);
    std::string json_rank;
    std::string text_rank;
    if (rank >= 0) {
      json_rank = R"("rank":)" + number + ',';
      text_rank = "rank " + number + ": ";
    }
    logger->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",)" + json_rank +
                                   R"("message":%v})"
                             : "%^%H:%M:%S.%e %-7l%$ " + text_rank + "%v");
    logger->flush_on(spdlog::level::warn);
  }

  /// Who waits for a reader would stop all who log, and these the server.
  void write(spdlog::level::level_enum level, std::string_view line) {
    const std::lock_guard lock(writing);
    const bool is_slow = Clock::now() - lost_at < kSlow;
    bool room = has_room(is_slow ? 0 : kPatienceMs);
    if (room && lost > 0) {
      const std::string told = fmt::format("{} lines are lost: nobody read the log", lost);
      logger->warn(json ? log::quoted(told) : told);
      lost = 0;
      room = has_room(0);
    }
    if (room) return logger->log(level, line);
    ++lost;
    lost_at = Clock::now();
  }
};

// The one process-wide object of this folder: standard error itself is process-wide.
Sink& sink() {
  static Sink instance;
  return instance;
}

/// What ends a line (LS, PS) or turns the direction of text where a log is shown.
constexpr std::pair<std::string_view, std::string_view> kMovesText[] = {
    {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}, {"\u202a", "\\u202a"}, {"\u202b", "\\u202b"},
    {"\u202c", "\\u202c"}, {"\u202d", "\\u202d"}, {"\u202e", "\\u202e"}, {"\u2066", "\\u2066"},
    {"\u2067", "\\u2067"}, {"\u2068", "\\u2068"}, {"\u2069", "\\u2069"}};

}  // namespace

/// JSON may have DEL and the C1 controls as they are, but they steer terminals.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : json_string(text)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_c1 = byte >= 0x80 && byte < 0xA0 && out.ends_with('\xC2');
    if (is_c1) out.pop_back();
    if (is_c1 || byte == 0x7F) {
      out += fmt::format("\\u{:04x}", byte);
      continue;
    }
    out += c;
    if (byte < 0x80) continue;
    for (const auto& [character, escape] : kMovesText)
      if (out.ends_with(character)) out.replace(out.size() - 3, 3, escape);
  }
  return out;
}

void configure(Level lowest, Format format) {
  sink().lowest = lowest;
  sink().format = format;
  sink().apply();
}

Level lowest() {
  return sink().lowest;
}

Format format() {
  return sink().format;
}

void set_rank(std::int64_t rank) {
  sink().rank = rank;
  sink().apply();
}

void write(Level level, std::string_view message) {
  write(level, message, {});
}

void write(Level level, std::string_view message, std::span<const Field> fields) {
  Sink& out = sink();
  if (!out.logger->should_log(spdlog_level(level))) return;
  std::string line = out.json ? quoted(message) : std::string(message);
  for (const Field& field : fields) {
    if (out.json) {
      line += ',' + quoted(field.name) + ':' + field.value;
    } else {
      line.append(" ").append(field.name).append("=").append(field.value);
    }
  }
  out.write(spdlog_level(level), line);
}

}  // namespace koho::log
