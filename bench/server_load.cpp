// SPDX-License-Identifier: Apache-2.0
// The server under many streams, without a model: ranks that answer at a fixed pace (or at once),
// and a client process that reads every stream and notes when each token came. Measures server,
// API and engine: lateness, memory a connection, host time a token.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/core.h>
#include <netinet/in.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/plan_writer.h"
#include "runtime/detokenizing_decoder.h"
#include "server/server.h"

namespace {

using namespace koho;

struct Options {
  int streams = 256;
  std::int64_t period_us = 0;  // between two tokens of a stream; 0: as fast as it goes
  int tokens = 200;            // of each stream
};

/// Answers step k at the time begin + k * period, never earlier.
class PacedExecutor final : public Executor {
 public:
  PacedExecutor(const PlanBounds& bounds,
                Token vocabulary,
                std::int64_t begin_us,
                std::int64_t period_us)
      : bounds_(bounds), vocabulary_(vocabulary), period_us_(period_us), due_us_(begin_us) {
    for (auto& lane : lanes_) lane.resize((plan_bytes(bounds.counts_max()) + 7) / 8);
  }
  std::span<std::byte> plan_space() override {
    return std::as_writable_bytes(std::span(lanes_[submitted_ % 2]));
  }
  Status submit(std::size_t bytes) override {
    KOHO_TRY_ASSIGN(const StepPlan plan, read_plan(plan_space().first(bytes), bounds_));
    steps_[submitted_ % 2] = {plan.step, plan.sample_seats.size()};
    ++submitted_;
    return {};
  }
  Status send_masks() override { return {}; }  // it looks at none
  Status collect(StepResult& result, std::int64_t timeout_us) override {
    if (period_us_ > 0) {
      const std::int64_t now = clock_.now_us();
      // After a pause the pace goes on in the same rhythm.
      while (due_us_ + period_us_ < now - period_us_) due_us_ += period_us_;
      const std::int64_t wait = due_us_ + period_us_ - now;
      if (wait > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(wait, timeout_us)));
      if (wait > timeout_us) return make_error(ErrorCode::deadline_exceeded, "not yet");
      due_us_ += period_us_;
    }
    const auto [step, samples] = steps_[collected_++ % 2];
    result.step = step;
    result.tokens.clear();
    for (std::size_t i = 0; i < samples; ++i) result.tokens.push_back(token_++ % vocabulary_);
    result.logprobs.clear();
    result.top_ids.clear();
    result.top_logprobs.clear();
    return {};
  }
  Status recover(std::int64_t /*timeout_us*/) override { return {}; }

 private:
  PlanBounds bounds_;
  Token vocabulary_;
  std::int64_t period_us_;
  std::int64_t due_us_;
  SteadyClock clock_;
  std::vector<std::uint64_t> lanes_[2];
  std::pair<std::int64_t, std::size_t> steps_[2];
  std::uint64_t submitted_ = 0;
  std::uint64_t collected_ = 0;
  Token token_ = 0;
};

/// What the client process tells.
struct Report {
  std::int64_t complete = 0;
  std::int64_t errors = 0;
  std::int64_t frames = 0;
  std::int64_t lateness_p50_us = 0;
  std::int64_t lateness_p99_us = 0;
  std::int64_t lateness_max_us = 0;
  std::int64_t first_us = 0;  // the first frame of all
  std::int64_t last_us = 0;
};

struct Stream {
  int socket = -1;
  bool sent = false;
  char last = 0;
  int frames = 0;
  std::int64_t base_us = 0;  // when the step of its first frame was due
};

/// Reads all streams to their ends.
Report run_client(std::uint16_t port, const Options& options, std::int64_t begin_us) {
  const SteadyClock clock;
  const int poller = epoll_create1(0);
  std::vector<Stream> streams(static_cast<std::size_t>(options.streams));
  const std::string body = fmt::format(
      R"({{"model":"load","prompt":[1,2,3,4],"max_tokens":{},"ignore_eos":true,"stream":true,)"
      R"("return_token_ids":true}})",
      options.tokens);
  const std::string request = fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Report report;
  int open = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    streams[i].socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(streams[i].socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
            0 ||
        send(streams[i].socket, request.data(), request.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(request.size())) {
      ++report.errors;
      continue;
    }
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    epoll_ctl(poller, EPOLL_CTL_ADD, streams[i].socket, &event);
    ++open;
  }
  std::vector<std::int32_t> lateness;
  lateness.reserve(streams.size() * static_cast<std::size_t>(options.tokens));
  std::array<epoll_event, 512> events;
  std::array<char, 64U << 10U> buffer;
  while (open > 0) {
    const int ready = epoll_wait(poller, events.data(), static_cast<int>(events.size()), 60'000);
    if (ready <= 0) break;
    for (int e = 0; e < ready; ++e) {
      Stream& stream = streams[events[static_cast<std::size_t>(e)].data.u64];
      const ssize_t bytes = recv(stream.socket, buffer.data(), buffer.size(), 0);
      const std::int64_t now = clock.now_us();
      if (bytes <= 0) {
        // All tokens and "[DONE]".
        const bool complete = bytes == 0 && stream.frames == options.tokens + 1;
        report.complete += complete ? 1 : 0;
        report.errors += complete ? 0 : 1;
        close(stream.socket);
        --open;
        continue;
      }
      for (ssize_t i = 0; i < bytes; ++i) {
        const char c = buffer[static_cast<std::size_t>(i)];
        if (c == '\n' && stream.last == '\n') {
          ++report.frames;
          if (report.first_us == 0) report.first_us = now;
          report.last_us = now;
          if (options.period_us > 0 && stream.frames < options.tokens) {
            if (stream.frames == 0) stream.base_us = now - (now - begin_us) % options.period_us;
            lateness.push_back(static_cast<std::int32_t>(now - stream.base_us -
                                                         stream.frames * options.period_us));
          }
          ++stream.frames;
        }
        stream.last = c;
      }
    }
  }
  report.errors += open;
  std::ranges::sort(lateness);
  if (!lateness.empty()) {
    report.lateness_p50_us = lateness[lateness.size() / 2];
    report.lateness_p99_us = lateness[lateness.size() * 99 / 100];
    report.lateness_max_us = lateness.back();
  }
  return report;
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double cpu_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

int run(const Tokenizer& tokenizer, const Options& options) {
  const SteadyClock clock;
  const std::int64_t begin_us = clock.now_us();
  // The client is a process of its own, made before there are threads.
  int to_client[2];
  int to_server[2];
  if (pipe(to_client) != 0 || pipe(to_server) != 0) return 1;
  const pid_t client = fork();
  if (client == 0) {
    std::uint16_t port = 0;
    if (read(to_client[0], &port, sizeof port) != sizeof port) _exit(1);
    const Report report = run_client(port, options, begin_us);
    _exit(write(to_server[1], &report, sizeof report) == sizeof report ? 0 : 1);
  }

  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.context_max = options.tokens + 64;
  s.sequences_max = options.streams;
  s.pages = options.streams * s.pages_per_sequence_max();
  s.live_max = 2 * options.streams;
  s.step_tokens_max = options.streams + 8192;
  s.mixed_prefill_tokens_max = 8192;
  limits.vocabulary = tokenizer.vocab_size();
  limits.requests_max = options.streams + 64;
  limits.choices_max = 1;
  PacedExecutor executor(plan_bounds(limits), tokenizer.vocab_size() / 2, begin_us,
                         options.period_us);
  Result<std::unique_ptr<Engine>> engine =
      Engine::start(limits, executor, clock, detokenizing_decoders(tokenizer));
  if (!engine.ok()) {
    fmt::print(stderr, "{}\n", engine.error().message);
    return 1;
  }
  server::Serving serving{.engine = **engine, .model = {}};
  serving.model.names = {"load"};
  serving.model.tokenizer = &tokenizer;
  serving.model.limits = limits;
  server::ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.io_threads = 2;
  settings.log_requests = false;
  Result<std::unique_ptr<server::Server>> server = server::Server::start(settings, clock);
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.error().message);
    return 1;
  }
  (*server)->core().set_serving(serving);

  const std::int64_t base_bytes = resident_bytes();
  const double cpu_before = cpu_seconds();
  const std::uint16_t port = (*server)->port();
  if (write(to_client[1], &port, sizeof port) != sizeof port) return 1;
  std::int64_t peak_bytes = base_bytes;
  std::int64_t live_max = 0;
  std::thread watching([&] {
    int status = 0;
    while (waitpid(client, &status, WNOHANG) == 0) {
      peak_bytes = std::max(peak_bytes, resident_bytes());
      live_max = std::max(live_max, (*server)->core().counters().connections_live.load());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  Report report;
  const bool told = read(to_server[0], &report, sizeof report) == sizeof report;
  watching.join();
  const double cpu = cpu_seconds() - cpu_before;
  (*engine)->settle();
  const Statistics left = (*engine)->statistics();
  const bool good = told && report.errors == 0 && report.complete == options.streams &&
                    left.requests_live == 0 &&
                    left.pages_free + left.pages_cached == left.pages_total;
  const double seconds = static_cast<double>(report.last_us - report.first_us) / 1e6;
  fmt::print(
      R"({{"streams":{},"period_us":{},"tokens":{},"complete":{},"errors":{},"live_max":{},)"
      R"("seconds":{:.2f},"tokens_per_second":{:.0f},"lateness_us":{{"p50":{},"p99":{},"max":{}}},)"
      R"("bytes_per_connection":{},"cpu_us_per_token":{:.2f},"requests_left":{},"good":{}}})"
      "\n",
      options.streams, options.period_us, options.tokens, report.complete, report.errors, live_max,
      seconds, static_cast<double>(report.frames) / seconds, report.lateness_p50_us,
      report.lateness_p99_us, report.lateness_max_us,
      (peak_bytes - base_bytes) / std::max<std::int64_t>(live_max, 1),
      cpu * 1e6 / static_cast<double>(std::max<std::int64_t>(report.frames, 1)), left.requests_live,
      good);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr,
               "server_load TOKENIZER.json STREAMS PERIOD_US TOKENS\n"
               "PERIOD_US: between two tokens of a stream; 0 = as fast as it goes\n");
    return 2;
  }
  const Result<Tokenizer> tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  Options options;
  options.streams = std::atoi(argv[2]);
  options.period_us = std::atoll(argv[3]);
  options.tokens = std::atoi(argv[4]);
  return run(*tokenizer, options);
}
