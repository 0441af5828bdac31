// SPDX-License-Identifier: Apache-2.0
// What the server bears: thousands of streams, clients that leave, stall, dribble or vanish, and
// more requests than it can answer. A server without a model runs in a process of its own
// (load_server.h), the clients in this one. Each scenario prints one line of JSON with what was
// measured; the exit code is 1 if a target is missed or anything is left over.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "bench/load_scenarios.h"

int main(int argc, char** argv) {
  using namespace koho;
  using namespace koho::bench;
  std::signal(SIGPIPE, SIG_IGN);
  bool brief = false;
  std::int64_t requests = 0;
  std::string_view tokenizer_file;
  std::vector<std::string_view> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--brief") {
      brief = true;
    } else if (argument == "--requests" && i + 1 < argc) {
      requests = std::strtoll(argv[++i], nullptr, 10);
    } else if (tokenizer_file.empty()) {
      tokenizer_file = argument;
    } else {
      chosen.push_back(argument);
    }
  }
  using Scenario = std::pair<std::string_view, bool (*)(const Run&)>;
  const std::array<Scenario, 11> scenarios{{
      {"streams",
       [](const Run& run) {
         const StreamLoad load = run.brief ? StreamLoad{100, 20'000, 10, false, 1000}
                                           : StreamLoad{10'000, 500'000, 240, false, 2000};
         return streams(run, "streams", load, {64.0 * kKilobyte, 250.0, 1e9});
       }},
      {"overhead",
       [](const Run& run) {
         const StreamLoad load = run.brief ? StreamLoad{32, 5'000, 20, false, 1e6}
                                           : StreamLoad{256, 20'000, 1000, false, 1e6};
         return streams(run, "overhead", load, {256.0 * kKilobyte, 250.0, 20.0});
       }},
      {"overhead_chat",
       [](const Run& run) {
         const StreamLoad load = run.brief ? StreamLoad{32, 5'000, 20, true, 1e6}
                                           : StreamLoad{256, 20'000, 1000, true, 1e6};
         return streams(run, "overhead_chat", load, {256.0 * kKilobyte, 250.0, 20.0});
       }},
      {"churn", churn},
      {"slow_readers", slow_readers},
      {"half_open", half_open},
      {"slowloris", slowloris},
      {"every_byte", every_byte},
      {"overload", overload},
      {"pipelining", pipelining},
      {"soak", soak},
  }};
  if (tokenizer_file.empty()) {
    fmt::print(stderr,
               "server_load TOKENIZER.json [--brief] [--requests N] [SCENARIO ...]\n"
               "--requests: of the soak, 1000000 if not given; 4000 with --brief\nscenarios:");
    for (const auto& [name, scenario] : scenarios) fmt::print(stderr, " {}", name);
    fmt::print(stderr, "\n");
    return 2;
  }
  const Result<Tokenizer> tokenizer = Tokenizer::load(std::string(tokenizer_file));
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  const Run run{*tokenizer, brief, requests};
  bool good = true;
  for (const auto& [name, scenario] : scenarios)
    if (chosen.empty() || std::ranges::find(chosen, name) != chosen.end())
      good = scenario(run) && good;
  return good ? 0 : 1;
}
