// SPDX-License-Identifier: Apache-2.0
#include "app/serve_notes.h"

#include <array>
#include <cstdio>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include "app/load_bar.h"
#include "app/progress_bar.h"
#include "base/log.h"

namespace koho::app {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLine{10};

/// A host that a client on this machine can name.
std::string client_host(const std::string& host) {
  if (host == "0.0.0.0" || host == "::" || host == "[::]") return "localhost";
  return host.find(':') != std::string::npos && !host.starts_with('[') ? "[" + host + "]" : host;
}

}  // namespace

LoadWatch::LoadWatch(const LoadProgress& progress)
    : progress_(progress),
      terminal_(isatty(STDERR_FILENO) == 1),
      looks_(terminal_ ? kRedraw : std::chrono::milliseconds(kLine), [this] { look(); }) {}

void LoadWatch::look() {
  const LoadProgress::Now now = progress_.now();
  if (now.bytes_total == 0) return;
  if (terminal_)
    bar_.show(now.fraction(), now.left_s, load_progress_text(now));
  else
    log::info("loading weights: {:.0f} %, {}{}", 100.0 * now.fraction(), load_progress_text(now),
              now.left_s >= 0.0 ? ", " + time_text(now.left_s) + " left" : "");
}

void tell_ready(const ServeOptions& options, std::uint16_t port) {
  const bool tls = !options.server.tls_cert.empty();
  const std::string url =
      fmt::format("{}://{}:{}", tls ? "https" : "http", client_host(options.server.host), port);
  const std::string key =
      options.server.api_keys.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'";
  const std::string curl = fmt::format(
      "curl {}/v1/chat/completions{} -H 'Content-Type: application/json' -d "
      "'{{\"messages\":[{{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}}]}}'",
      url, key);
  const bool json =
      options.log_format == "json" || (options.log_format == "auto" && isatty(STDERR_FILENO) == 0);
  if (json) {
    const std::array<log::Field, 3> fields{{{"url", log::quoted(url + "/v1")},
                                            {"page", log::quoted(url + "/ui")},
                                            {"try", log::quoted(curl)}}};
    log::write(log::Level::info, "serving", fields);
    return;
  }
  if (options.log_level == "warning" || options.log_level == "error") return;
  std::fprintf(stderr, "  API   %s/v1 (OpenAI), %s (Anthropic)\n  page  %s/ui\n  try   %s\n",
               url.c_str(), url.c_str(), url.c_str(), curl.c_str());
}

void ThroughputLog::look(const Statistics& now) {
  const Clock::time_point time = Clock::now();
  if (interval_.count() == 0 || time - since_ < interval_) return;
  const double seconds = std::chrono::duration<double>(time - since_).count();
  const auto per_s = [seconds](std::uint64_t from, std::uint64_t to) {
    return static_cast<double>(to - from) / seconds;
  };
  const std::uint64_t sampled = now.sampled_tokens - before_.sampled_tokens;
  const std::uint64_t computed = now.computed_tokens - before_.computed_tokens;
  const std::uint64_t decoded = now.decode_rows - before_.decode_rows;
  const std::uint64_t queried = now.prefix_queried_tokens - before_.prefix_queried_tokens;
  const std::uint64_t hits = now.prefix_hit_tokens - before_.prefix_hit_tokens;
  if (now.running + now.waiting > 0 || computed > 0)
    log::info(
        "running {}, waiting {}; prefill {:.0f} tok/s, decode {:.0f} tok/s; cache hits {:.0f} %, "
        "KV cache {:.0f} % in use",
        now.running, now.waiting, per_s(decoded, computed < decoded ? decoded : computed),
        per_s(0, sampled),
        queried > 0 ? 100.0 * static_cast<double>(hits) / static_cast<double>(queried) : 0.0,
        now.pages_total > 0
            ? 100.0 * (1.0 - static_cast<double>(now.pages_free + now.pages_cached) /
                                 static_cast<double>(now.pages_total))
            : 0.0);
  since_ = time;
  before_ = now;
}

}  // namespace koho::app
