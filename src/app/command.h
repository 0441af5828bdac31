// SPDX-License-Identifier: Apache-2.0
// The commands of the program `koho`: each file of this folder adds one sub-command with its flags,
// help and examples, and hands back what runs it. main.cpp parses, runs, prints the one error line
// and chooses the exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace koho::app {

/// Runs a parsed command. Output goes to standard output, everything else to standard error.
using Runner = std::function<Status()>;

/// One sub-command. `add` declares its flags on `command` and returns what runs after parsing.
struct Command {
  const char* name;
  const char* summary;
  Runner (*add)(CLI::App& command);
};

/// A flag's integer, `least` or more. (CLI11's own PositiveNumber prints the limits of a double.)
CLI::Validator at_least(std::int64_t least);

// One function a command, each defined in the file of its name.
Runner add_batch(CLI::App& command);
Runner add_bench(CLI::App& command);
Runner add_bench_latency(CLI::App& command);     // below bench
Runner add_bench_requests(CLI::App& command);    // bench itself
Runner add_bench_throughput(CLI::App& command);  // below bench
Runner add_check(CLI::App& command);
Runner add_inspect(CLI::App& command);
Runner add_logits(CLI::App& command);
Runner add_run(CLI::App& command);
Runner add_render(CLI::App& command);
Runner add_tokenize(CLI::App& command);

}  // namespace koho::app
