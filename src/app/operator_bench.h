// SPDX-License-Identifier: Apache-2.0
// The speed of operators at given shapes: each case builds its operands once, then enqueues the
// operator any number of times over weights that are rotated out of the caches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace koho::app {

/// One row of the results: what was run and what it had to move and compute.
struct OpBench {
  std::string op;                             // as in src/ops
  std::map<std::string, std::int64_t> shape;  // "tokens", "context", …
  double bytes = 0.0;                         // each distinct weight or cache byte once
  double flops = 0.0;
  /// Enqueues call number `i`.
  std::function<Status(std::int64_t i)> run;
  std::int64_t calls = 0;  // that one timing takes together
};

/// A case that is built when its turn comes, so that one case's memory is held at a time.
struct OpBenchCase {
  std::string name;
  std::function<Result<std::vector<OpBench>>(Backend& backend)> build;
};

std::vector<OpBenchCase> op_bench_cases();

struct OperatorBenchOptions {
  std::string only;     // text that a case's name contains; empty: all
  std::string tokens;   // "1,16": only these numbers of tokens
  std::string out;      // a JSON file to write (bench/results/)
  std::string commit;   // what is measured, for the file
  std::string command;  // for the file
};

/// Times the cases and prints a table. A call is timed in a graph of many over rotated weights: the
/// median of several replays, divided. Errors: the first case that fails; io_error.
Status run_operator_bench(Backend& backend, const OperatorBenchOptions& options);

}  // namespace koho::app
