// SPDX-License-Identifier: Apache-2.0
// Scenarios of server_load with clients that stall, dribble or vanish.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "bench/load_scenarios.h"

namespace koho::bench {

namespace {

/// Reads nothing, or a few bytes at a time.
class SlowReader final : public LoadClient {
 public:
  SlowReader(std::string request, std::int64_t us_per_byte)
      : request_(std::move(request)), us_per_byte_(us_per_byte) {}
  void on_open() override {
    send(request_);
    read_at_most(0);
    if (us_per_byte_ > 0) wake_at(now_us());
  }
  void on_time() override {
    read_at_most(kBite);
    wake_at(now_us() + kUsPerSecond);
  }
  void on_bytes(std::string_view bytes) override {
    read_at_most(0);
    wake_at(now_us() + static_cast<std::int64_t>(bytes.size()) * us_per_byte_);
  }
  void on_end(End /*end*/) override {}

 private:
  static constexpr std::size_t kBite = 50;
  std::string request_;
  std::int64_t us_per_byte_;
};

}  // namespace

/// L3: readers that take little or nothing, beside normal ones.
bool slow_readers(const Run& run) {
  Findings findings("slow_readers", run);
  const std::int64_t slow = run.brief ? 5 : 500;  // of each kind
  const std::int64_t normal = run.brief ? 5 : 100;
  const int tokens = run.brief ? 50 : 200;  // of a normal stream
  const int rounds = run.brief ? 1 : 5;     // of normal streams, one after the other
  LoadServerOptions options;
  options.sequences = static_cast<std::int32_t>(2 * slow + normal);
  options.context = 4096;
  options.period_us = run.brief ? 2'000 : 50'000;
  if (run.brief) options.time = {.tick_ms = 10, .write_stall_ms = 200};
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  const std::int64_t idle_bytes = server->resident_bytes();
  std::int64_t peak_bytes = idle_bytes;
  const auto serve_normal = [&](int times) {
    Tally tally{.grid = run.grid_of(*server)};
    for (std::int64_t wanted = normal; wanted <= times * normal; wanted += normal) {
      for (std::int64_t i = 0; i < normal; ++i)
        generator.join(std::make_unique<StreamingClient>(tally, completion(tokens), tokens));
      const bool ended = generator.run(
          [&] {
            peak_bytes = std::max(peak_bytes, server->resident_bytes());
            return tally.complete + tally.errors >= wanted;
          },
          now_us() + 60 * kUsPerSecond);
      if (!ended) findings.miss("normal streams did not end");
    }
    return tally;
  };
  // Large events fill buffers early. First everybody reads as fast as it can.
  constexpr std::string_view kLarge = R"(,"logprobs":5)";
  Tally others{.grid = run.grid_of(*server)};
  for (std::int64_t i = 0; i < 2 * slow; ++i)
    generator.join(std::make_unique<StreamingClient>(others, completion(tokens, kLarge), tokens));
  Tally before = serve_normal(1);
  generator.run_out(now_us() + 60 * kUsPerSecond);
  const std::int64_t begin = now_us();
  for (std::int64_t i = 0; i < 2 * slow; ++i)
    generator.join(
        std::make_unique<SlowReader>(completion(4000, kLarge), i < slow ? 0 : kUsPerSecond / 100),
        4096);
  Tally beside = serve_normal(rounds);
  // A client that reads nothing does not see its connection end: the server says.
  std::int64_t look_us = 0;
  const bool given_up = generator.run(
      [&] {
        if (now_us() < look_us) return false;
        look_us = now_us() + kUsPerSecond / 20;
        return server->metric("koho_connections_live") == 1.0;  // the question's own
      },
      begin + 150 * kUsPerSecond);
  if (!given_up) findings.miss("slow readers were not given up");
  findings.tell("slow", static_cast<double>(2 * slow));
  findings.tell("given_up_after_s", static_cast<double>(now_us() - begin) / 1e6);
  tell_streams(findings, beside, normal * rounds);
  // Beside as many that read: what is added is the slow ones' doing.
  const double p99_before = percentile_ms(before.lateness_us, 0.99);
  findings.tell("lateness_p99_ms_before", p99_before);
  findings.in_full_at_most("lateness_p99_ms_beside", percentile_ms(beside.lateness_us, 0.99),
                           1.1 * p99_before);
  findings.in_full_at_most(
      "bytes_per_slow_connection",
      static_cast<double>(peak_bytes - idle_bytes) / static_cast<double>(2 * slow),
      320.0 * kKilobyte);  // 64 as any, and 256 that may wait for it
  generator.leave_all();
  end_well(*server, findings, kUsPerSecond);
  return findings.print();
}

namespace {

/// Sends a request a byte at a time; the server must cut it short with a 408.
class SlowlorisClient final : public LoadClient {
 public:
  SlowlorisClient(Tally& tally, std::string at_once, std::int64_t us_per_byte)
      : tally_(tally), at_once_(std::move(at_once)), us_per_byte_(us_per_byte) {}
  void on_open() override {
    send(at_once_);
    wake_at(now_us() + us_per_byte_);
  }
  void on_time() override {
    send("x");
    wake_at(now_us() + us_per_byte_);
  }
  void on_bytes(std::string_view bytes) override { answer_ += bytes; }
  void on_end(End /*end*/) override {
    if (answer_.starts_with("HTTP/1.1 408 ")) {
      ++tally_.complete;
    } else {
      tally_.fault(fmt::format("{} for 408", answer_.substr(0, 30)));
    }
  }

 private:
  Tally& tally_;
  std::string at_once_;
  std::int64_t us_per_byte_;
  std::string answer_;
};

}  // namespace

/// L5: heads and bodies that never end, a body in a million chunks; beside them normal streams.
bool slowloris(const Run& run) {
  Findings findings("slowloris", run);
  const std::int64_t heads = run.brief ? 20 : 5000;
  const std::int64_t bodies = run.brief ? 10 : 1000;
  const std::int64_t chunks = run.brief ? 2000 : 1'000'000;
  const std::int64_t normal = run.brief ? 5 : 100;
  LoadServerOptions options;
  options.period_us = run.brief ? 2'000 : 50'000;
  options.sequences = static_cast<std::int32_t>(normal) + 8;
  if (run.brief) options.time = {.tick_ms = 10, .head_ms = 200, .body_grace_ms = 200};
  const std::int64_t patience_us = options.time.head_ms * 1000;
  const int tokens = static_cast<int>(patience_us * 2 / options.period_us);
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  Tally attack;
  Tally tally{.grid = run.grid_of(*server)};
  LoadGenerator generator(server->port());
  const std::int64_t base_cpu = server->cpu_us();
  const std::int64_t begin = now_us();
  for (std::int64_t i = 0; i < normal; ++i)
    generator.join(std::make_unique<StreamingClient>(tally, completion(tokens), tokens));
  for (std::int64_t i = 0; i < heads; ++i)
    generator.join(std::make_unique<SlowlorisClient>(attack, "G", patience_us));
  for (std::int64_t i = 0; i < bodies; ++i)
    generator.join(std::make_unique<SlowlorisClient>(
        attack,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
        kUsPerSecond / 10));
  const bool ended = generator.run_out(begin + 8 * patience_us + 60 * kUsPerSecond);
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  const double cpu = static_cast<double>(server->cpu_us() - base_cpu) / 1e6;
  if (!ended) findings.miss("not at an end in time");
  findings.tell("seconds", seconds);
  findings.is("attackers_told_408", static_cast<double>(attack.complete),
              static_cast<double>(heads + bodies));
  for (const auto& [what, count] : attack.faults) findings.miss(fmt::format("{}: {}", what, count));
  tell_streams(findings, tally, normal);
  findings.in_full_at_most("lateness_p99_ms", percentile_ms(tally.lateness_us, 0.99), 250.0);
  findings.in_full_at_most("cpu_percent_of_a_core", 100.0 * cpu / seconds, 50.0);

  // One byte a chunk: spaces, then the request.
  std::string body;
  const std::string_view request = R"({"model":"load","prompt":[1],"max_tokens":1})";
  for (std::int64_t i = 0; i < chunks; ++i)
    body += fmt::format("1\r\n{}\r\n",
                        i < chunks - static_cast<std::int64_t>(request.size())
                            ? ' '
                            : request[request.size() - static_cast<std::size_t>(chunks - i)]);
  Tally chunked;
  const std::int64_t chunk_cpu = server->cpu_us();
  generator.join(std::make_unique<SingleRequestClient>(
      chunked,
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
          body + "0\r\n\r\n",
      200));
  if (!generator.run_out(now_us() + 60 * kUsPerSecond)) findings.miss("the chunks were not read");
  findings.is("chunked_body_answered", static_cast<double>(chunked.complete), 1);
  findings.tell("chunks", static_cast<double>(chunks));
  findings.tell("chunks_cpu_ms", static_cast<double>(server->cpu_us() - chunk_cpu) / 1e3);
  end_well(*server, findings);
  return findings.print();
}

namespace {

/// Falls silent without a word, at once or after so many bytes.
class VanishingClient final : public LoadClient {
 public:
  VanishingClient(std::int64_t& vanished, std::string request)
      : vanished_(vanished), request_(std::move(request)) {}
  void on_open() override {
    if (request_.empty()) {
      go();
    } else {
      send(request_);
    }
  }
  void on_bytes(std::string_view /*bytes*/) override { go(); }
  void on_end(End /*end*/) override {}

 private:
  void go() {
    if (!gone_ && vanish()) ++vanished_;
    gone_ = true;
  }

  std::int64_t& vanished_;
  std::string request_;
  bool gone_ = false;
};

}  // namespace

/// L4: clients whose machine is gone: idle, in the middle of a stream, and waiting in the queue.
bool half_open(const Run& run) {
  Findings findings("half_open", run);
  if (run.brief) return true;  // the kernel's timers, which set the pace here, have no short form
  constexpr std::int64_t kStreaming = 400;
  constexpr std::int64_t kQueued = 200;
  constexpr std::int64_t kIdle = 400;
  LoadServerOptions options;
  options.sequences = kStreaming;
  options.waiting = 1024;
  options.context = 8192;
  options.period_us = 50'000;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  std::int64_t vanished = 0;
  for (std::int64_t i = 0; i < kStreaming; ++i)
    generator.join(std::make_unique<VanishingClient>(vanished, completion(8000)));
  for (std::int64_t i = 0; i < kIdle; ++i)
    generator.join(std::make_unique<VanishingClient>(vanished, ""));
  generator.run([&] { return vanished == kStreaming + kIdle; }, now_us() + 5 * kUsPerSecond);
  // Those that wait behind them get pings only; they go as soon as they have asked.
  const std::int64_t begin = now_us();
  struct OneByteClient final : LoadClient {
    std::int64_t* vanished;
    void on_open() override {
      send(completion(8000));
      wake_at(now_us() + kUsPerSecond / 10);
    }
    void on_time() override { *vanished += vanish() ? 1 : 0; }
    void on_bytes(std::string_view) override {}
    void on_end(End) override {}
  };
  for (std::int64_t i = 0; i < kQueued; ++i) {
    auto client = std::make_unique<OneByteClient>();
    client->vanished = &vanished;
    generator.join(std::move(client));
  }
  generator.run([&] { return vanished == kStreaming + kIdle + kQueued; },
                now_us() + 5 * kUsPerSecond);
  findings.is("vanished", static_cast<double>(vanished), kStreaming + kIdle + kQueued);
  const std::string left = server->leftovers(90 * kUsPerSecond);
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  if (!left.empty()) findings.miss("left over: " + left);
  findings.at_most("all_found_after_s", seconds, 45.0);
  if (const std::string wrong = server->end(); !wrong.empty()) findings.miss(wrong);
  return findings.print();
}

}  // namespace koho::bench
