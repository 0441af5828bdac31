// SPDX-License-Identifier: Apache-2.0
// Scenarios of server_load with clients that mean well: thousands of streams at once, and requests
// that come and go.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "bench/load_scenarios.h"

namespace koho::bench {

/// L1, and the streaming overhead.
bool streams(const Run& run,
             std::string_view name,
             const StreamLoad& load,
             const StreamTargets& targets) {
  Findings findings(name, run);
  LoadServerOptions options;
  options.sequences = static_cast<std::int32_t>(load.streams);
  options.context = load.tokens + 64;
  options.period_us = load.period_us;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  Tally tally{.grid = run.grid_of(*server)};
  tally.lateness_us.reserve(static_cast<std::size_t>(load.streams * load.tokens));
  LoadGenerator generator(server->port());
  const std::int64_t base_bytes = server->resident_bytes();
  const std::int64_t base_cpu = server->cpu_us();
  const std::int64_t begin = now_us();
  Arrivals arrivals(load.streams, load.arrivals_per_s);
  std::size_t at_once = 0;
  std::int64_t peak_bytes = base_bytes;
  std::int64_t look_us = 0;
  const bool ended = generator.run(
      [&] {
        arrivals.go_on([&](std::int64_t) {
          const std::string request = load.chats ? chat(load.tokens) : completion(load.tokens);
          if (!generator.join(std::make_unique<StreamingClient>(tally, request, load.tokens)))
            tally.fault("no connection");
        });
        at_once = std::max(at_once, generator.size());
        if (now_us() >= look_us) {
          look_us = now_us() + kUsPerSecond / 10;
          peak_bytes = std::max(peak_bytes, server->resident_bytes());
        }
        return arrivals.all() && generator.size() == 0;
      },
      begin + load.period_us * load.tokens + 60 * kUsPerSecond);
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  const double cpu_us = static_cast<double>(server->cpu_us() - base_cpu);
  if (!ended) findings.miss("not at an end in time");
  findings.tell("streams", static_cast<double>(load.streams));
  findings.tell("tokens", static_cast<double>(tally.frames));
  findings.tell("seconds", seconds);
  tell_streams(findings, tally, load.streams);
  findings.in_full_at_least("at_once", static_cast<double>(at_once),
                            static_cast<double>(load.streams));
  findings.tell("lateness_p50_ms", percentile_ms(tally.lateness_us, 0.5));
  findings.in_full_at_most("lateness_p99_ms", percentile_ms(tally.lateness_us, 0.99),
                           targets.lateness_p99_ms);
  findings.tell("lateness_max_ms", percentile_ms(tally.lateness_us, 1.0));
  findings.in_full_at_most(
      "bytes_per_connection",
      static_cast<double>(peak_bytes - base_bytes) / static_cast<double>(load.streams),
      targets.bytes_per_connection);
  findings.in_full_at_most("cpu_us_per_token", cpu_us / static_cast<double>(tally.frames),
                           targets.cpu_us_per_token);
  end_well(*server, findings);
  return findings.print();
}

namespace {

/// Makes clients of all kinds: most read their stream to its end, some leave midway, some have it
/// cancelled, some send what is no request.
class MixedClients {
 public:
  MixedClients(Tally& tally, LoadGenerator& generator) : tally_(tally), generator_(generator) {}

  std::unique_ptr<LoadClient> make() {
    const int kind = below(100);
    if (kind < 5) return make_invalid();
    const int tokens = 1 + below(40);
    const bool talks = below(2) == 0;
    auto client = std::make_unique<StreamingClient>(
        tally_, talks ? chat(tokens) : completion(tokens), tokens);
    if (kind < 15) {
      ++leavers_;
      client->leave_after(1 + below(tokens), below(2) == 0);
    } else if (kind < 25) {
      ++cancels_;
      client->cancel_after(1 + below(tokens), [this](const std::string& id) {
        // Its end may come first: then nobody has that id any more.
        struct Canceller final : SingleRequestClient {
          using SingleRequestClient::SingleRequestClient;
          void on_end(End) override {}
        };
        const std::string order = fmt::format(R"({{"request_id":"{}"}})", id);
        generator_.join(std::make_unique<Canceller>(tally_, post("/abort_request", order), 0));
      });
    }
    return client;
  }
  void tell(Findings& findings) const {
    findings.tell("cancelled", static_cast<double>(cancels_));
    findings.tell("left_midway", static_cast<double>(leavers_));
    findings.tell("invalid", static_cast<double>(invalid_));
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  std::unique_ptr<LoadClient> make_invalid() {
    ++invalid_;
    switch (below(4)) {
      case 0:
        return std::make_unique<SingleRequestClient>(tally_, post("/v1/completions", "{\"model\""),
                                                     400);
      case 1:
        return std::make_unique<SingleRequestClient>(
            tally_, post("/v1/chat/completions", R"({"model":"load","messages":[]})"), 400);
      case 2:
        return std::make_unique<SingleRequestClient>(
            tally_, post("/v1/completions", R"({"model":"none","prompt":"a"})"), 404);
      default:
        return std::make_unique<SingleRequestClient>(tally_, "\x16\x03\x01 no HTTP", 400);
    }
  }

  Tally& tally_;
  LoadGenerator& generator_;
  std::mt19937 random_{1};
  std::int64_t cancels_ = 0;
  std::int64_t leavers_ = 0;
  std::int64_t invalid_ = 0;
};

}  // namespace

/// L2: requests of all kinds come and go.
bool churn(const Run& run) {
  Findings findings("churn", run);
  const std::int64_t total = run.brief ? 400 : 100'000;
  const std::size_t at_once = run.brief ? 50 : 1000;
  LoadServerOptions options;
  options.sequences = static_cast<std::int32_t>(at_once);
  options.waiting = static_cast<std::int32_t>(at_once);
  options.period_us = 2'000;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  Tally tally;
  LoadGenerator generator(server->port());
  MixedClients clients(tally, generator);
  std::int64_t joined = 0;
  const std::int64_t begin = now_us();
  const auto go_on_to = [&](std::int64_t last) {
    const bool ended = generator.run(
        [&] {
          while (joined < last && generator.size() < at_once) {
            if (!generator.join(clients.make())) tally.fault("no connection");
            ++joined;
          }
          return joined == last && generator.size() == 0;
        },
        begin + 300 * kUsPerSecond);
    if (!ended) findings.miss("not at an end in time");
    if (const std::string left = server->leftovers(10 * kUsPerSecond); !left.empty())
      findings.miss("left over: " + left);
  };
  const std::int64_t warm = total / 5;
  go_on_to(warm);
  const auto warm_heap = static_cast<double>(server->heap_bytes());
  const auto warm_resident = static_cast<double>(server->resident_bytes());
  go_on_to(total);
  findings.tell("seconds", static_cast<double>(now_us() - begin) / 1e6);
  tell_streams(findings, tally, total);
  clients.tell(findings);
  // Slots and malloc's own caches still grow to their bounds. One allocation lost with every
  // request would be 32 bytes, malloc's smallest, or more.
  const auto heap = static_cast<double>(server->heap_bytes());
  const auto resident = static_cast<double>(server->resident_bytes());
  findings.tell("heap_mb", heap / 1e6);
  findings.in_full_at_most("heap_growth_bytes_per_request",
                           (heap - warm_heap) / static_cast<double>(total - warm), 31.0);
  findings.tell("resident_mb", resident / 1e6);
  findings.tell("resident_growth_mb", (resident - warm_resident) / 1e6);
  end_well(*server, findings);
  return findings.print();
}

}  // namespace koho::bench
