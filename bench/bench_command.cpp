// SPDX-License-Identifier: Apache-2.0
// `koho bench`: a closed loop of requests (throughput_command.cpp); below it `latency`, single
// steps, `ops`, single operators, and `serve`, a client of servers.
#include <memory>

#include "app/command.h"

namespace koho::app {

Runner add_bench(CommandLine& command) {
  const auto chosen = std::make_shared<Runner>(add_bench_throughput(command));
  CommandLine* latency =
      command.add_subcommand("latency", "Time one step: decode and prefill, class by class");
  latency->callback([chosen, runner = add_bench_latency(*latency)] { *chosen = runner; });
  CommandLine* ops = command.add_subcommand("ops", "Check and time single operators");
  ops->callback([chosen, runner = add_bench_ops(*ops)] { *chosen = runner; });
  CommandLine* serve =
      command.add_subcommand("serve", "Drive a server, this one or any with OpenAI's API");
  serve->callback([chosen, runner = add_bench_serve(*serve)] { *chosen = runner; });
  return [chosen] { return (*chosen)(); };
}

}  // namespace koho::app
