// SPDX-License-Identifier: Apache-2.0
// `koho bench`: a closed loop of requests (bench_requests.cpp), and a command below it for each
// other thing that is measured.
#include <memory>

#include "app/command.h"

namespace koho::app {

Runner add_bench(CommandLine& command) {
  static constexpr Command kTable[] = {
      {"latency", "Time one step: decode and prefill, class by class", add_bench_latency},
      {"throughput", "Run many requests through the engine", add_bench_throughput},
  };
  const auto chosen = std::make_shared<Runner>(add_bench_requests(command));
  for (const Command& entry : kTable) {
    CommandLine* sub = command.add_subcommand(entry.name, entry.summary);
    const Runner runner = entry.add(*sub);
    sub->callback([chosen, runner] { *chosen = runner; });
  }
  return [chosen] { return (*chosen)(); };
}

}  // namespace koho::app
