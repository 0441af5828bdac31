// SPDX-License-Identifier: Apache-2.0
// What the server bears: thousands of streams, clients that leave, stall, dribble or vanish, and
// more requests than it can answer. A server without a model runs in a process of its own, or, for
// the soak, `koho serve` with its workers (load_server.h); the clients run in this one. Each
// scenario prints one line of JSON with what was measured; the exit code is 1 if a target is missed
// or anything is left over.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "bench/load_scenarios.h"
#include "bench/result_file.h"

namespace koho::bench {
namespace {

constexpr const char* kUsage =
    R"(server_load TOKENIZER.json [FLAGS] [SCENARIO ...]
server_load TOKENIZER.json [FLAGS] --koho PROGRAM soak -- FLAGS of `koho serve`
  --brief        few clients, no targets of time and memory
  --requests N   of the soak, 1000000 if not given; 4000 with --brief
  --koho PROGRAM the soak loads `koho serve`: -- --model models/tiny --device cuda
  --json FILE    also writes a file of bench/results, with --machine WORDS and --commit COMMIT
)";

struct Arguments {
  bool brief = false;
  std::int64_t requests = 0;
  std::string tokenizer_file;
  std::string json_file;
  ResultFile record;
  KohoProgram koho;
  std::vector<std::string_view> chosen;  // scenarios; none: all
};

Arguments read(int argc, char** argv) {
  Arguments read;
  std::string& command = read.record.command;  // but for what says where it is recorded
  command = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    const int first = i;
    bool recorded = true;
    if (argument == "--") {
      read.koho.arguments.assign(argv + i + 1, argv + argc);
      i = argc - 1;
    } else if (argument == "--brief") {
      read.brief = true;
    } else if (argument == "--requests") {
      read.requests = std::strtoll(value(), nullptr, 10);
    } else if (argument == "--koho") {
      read.koho.path = value();
    } else if (argument == "--json") {
      recorded = false;
      read.json_file = value();
    } else if (argument == "--machine") {
      recorded = false;
      read.record.machine = value();
    } else if (argument == "--commit") {
      recorded = false;
      read.record.commit = value();
    } else if (read.tokenizer_file.empty()) {
      read.tokenizer_file = argument;
    } else {
      read.chosen.push_back(argument);
    }
    for (int at = first; recorded && at <= i; ++at) command += fmt::format(" {}", argv[at]);
  }
  return read;
}

}  // namespace
}  // namespace koho::bench

int main(int argc, char** argv) {
  using namespace koho;
  using namespace koho::bench;
  std::signal(SIGPIPE, SIG_IGN);
  const Arguments arguments = read(argc, argv);
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
  const bool only_soak = arguments.chosen == std::vector<std::string_view>{"soak"};
  if (arguments.tokenizer_file.empty() || (!arguments.koho.path.empty() && !only_soak)) {
    fmt::print(stderr, "{}scenarios:", kUsage);
    for (const auto& [name, scenario] : scenarios) fmt::print(stderr, " {}", name);
    fmt::print(stderr, "\n");
    return 2;
  }
  const Result<Tokenizer> tokenizer = Tokenizer::load(arguments.tokenizer_file);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  std::vector<std::string> found;
  const Run run{*tokenizer, arguments.brief, found, arguments.requests, arguments.koho};
  bool good = true;
  for (const auto& [name, scenario] : scenarios)
    if (arguments.chosen.empty() ||
        std::ranges::find(arguments.chosen, name) != arguments.chosen.end())
      good = scenario(run) && good;
  if (!arguments.json_file.empty()) {
    const Status written = write_result_file(arguments.json_file, arguments.record,
                                             fmt::format("{}", fmt::join(found, ",\n")));
    if (!written.ok()) fmt::print(stderr, "{}\n", written.error().message);
    good = written.ok() && good;
  }
  return good ? 0 : 1;
}
