// SPDX-License-Identifier: Apache-2.0
// Whether an operator's results are right: the measured backend runs a case at its full shape, the
// reference some of its rows: the first, the last and some in the middle. The reference is the CPU
// backend, which tests/ops compares with float64 at random shapes. Results begin as poison: every
// row must be written, compared or not.
#pragma once

#include <string>

#include "bench/operator_bench.h"

namespace koho::bench {

/// What a check found.
struct CheckResult {
  std::string fault;      // "" or the largest error, where, and what was expected
  double largest = 0.0;   // error found, in parts of its tolerance; of bits 0
  std::int64_t rows = 0;  // compared
};

/// Errors: those of the backends.
Result<CheckResult> check_operator(const BenchBackends& site, const OperatorRun& run);

/// Puts results back that are changed in place. Errors: those of the backend.
Status restore_changed(Backend& backend, Side side, const OperatorRun& run);

}  // namespace koho::bench
