// SPDX-License-Identifier: Apache-2.0
// The commands of the program `koho`. The file of a command declares its flags, help and examples
// and returns the function that runs it. main.cpp parses, runs, prints the one error line and
// chooses the exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "app/command_line.h"
#include "base/error.h"

namespace koho::app {

/// Runs a parsed command. Output goes to standard output, everything else to standard error.
using Runner = std::function<Status()>;

/// One sub-command. `add` declares its flags on `command` and returns what runs after parsing.
struct Command {
  const char* name;
  const char* summary;
  Runner (*add)(CommandLine& command);
};

// One function per command, defined in the file of its name.
Runner add_batch(CommandLine& command);
Runner add_bench(CommandLine& command);
Runner add_bench_latency(CommandLine& command);     // below bench
Runner add_bench_ops(CommandLine& command);         // below bench
Runner add_bench_serve(CommandLine& command);       // below bench
Runner add_bench_throughput(CommandLine& command);  // bench itself
Runner add_chat(CommandLine& command);
Runner add_check(CommandLine& command);
Runner add_completion(CommandLine& command);
Runner add_inspect(CommandLine& command);
Runner add_logits(CommandLine& command);
Runner add_run(CommandLine& command);
Runner add_render(CommandLine& command);
Runner add_serve(CommandLine& command);  // only its name: run_serve() reads its flags
Runner add_tokenize(CommandLine& command);

}  // namespace koho::app
