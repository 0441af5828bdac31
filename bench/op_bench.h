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

namespace koho::bench {

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

}  // namespace koho::bench
