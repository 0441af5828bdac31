// SPDX-License-Identifier: Apache-2.0
// `koho bench`: the commands that measure, one below it for each thing measured.
#include <memory>

#include "app/command.h"

namespace koho::app {

Runner add_bench(CLI::App& command) {
  static constexpr Command kTable[] = {
      {"latency", "Time one step: decode and prefill, class by class", add_bench_latency},
      {"throughput", "Run many requests through the engine", add_bench_throughput},
  };
  command.require_subcommand(1);
  auto chosen = std::make_shared<Runner>();
  for (const Command& entry : kTable) {
    CLI::App* sub = command.add_subcommand(entry.name, entry.summary);
    const Runner runner = entry.add(*sub);
    sub->callback([chosen, runner] { *chosen = runner; });
  }
  return [chosen] { return (*chosen)(); };
}

}  // namespace koho::app
