// SPDX-License-Identifier: Apache-2.0
// The operators at a model's shapes: one list of cases for parity and speed. A case has its
// operands twice, on the backend that is measured and on a CPU backend, the reference; its results
// are compared (bench/operator_check.h), then the measured backend's calls are timed over weights
// that are rotated out of the caches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/operator_operands.h"
#include "ops/backend.h"

namespace koho::app {

/// Rows first..first+count-1 of a case's T.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// How far two backends' results may be apart, each within its tolerance of the float64 reference
/// (tests/ops/compare.h), so within both tolerances of the other. Numbers, row by row:
/// |got - expected| <= of_element |expected| + of_largest max|expected row|, and relative L2 <= l2.
struct OutputTolerance {
  bool bits = true;
  double l2 = 0.0;
  double of_element = 0.0;
  double of_largest = 0.0;
  /// Whether what token row `row` chose was a matter of rounding, so that it may differ.
  std::function<bool(std::int64_t row)> excused{};
};

/// bf16 values that `roundings` roundings in a row lead to: each may fall to the other side.
OutputTolerance bf16_tolerance(double l2, int roundings);
/// E4M3 values and scales of values that are known to `error` (relative L2).
OutputTolerance quantized_tolerance(double error);

/// One result of a case.
struct OpOutput {
  std::string name;
  Sides<TensorView> view;  // [T, …], or anything if the operator has no rows
  Sides<TensorView>
      scales{};  // of quantised values: f32, one for so many neighbouring quantised values; may be empty
  OutputTolerance tolerance{};
  /// The values of a result that is changed in place; empty: poison, of which nothing may be left.
  ConstTensorView before{};
  /// A row for the tolerance and for poison: so many elements; 0: those of view.size(0).
  std::int64_t row_elements = 0;
  bool by_row =
      true;  // row t is of token t; else what the reference leaves poisoned is not compared
};

/// One row of the results: what was run and what it had to move and compute.
struct OpBench {
  std::string op;                             // as in src/ops
  std::map<std::string, std::int64_t> shape;  // "tokens", "context", …
  double bytes = 0.0;                         // each distinct weight or cache byte once
  double flops = 0.0;
  DType math = DType::bf16;  // of its products
  /// Enqueues call number `i` of some rows; of the measured side always all.
  std::function<Status(Side side, RowRange rows, std::int64_t i)> run;
  std::int64_t rows = 0;  // T
  bool whole = false;     // the reference cannot take a part of the rows
  bool counts = false;    // calls add to results, which are put back before each reading
  std::vector<OpOutput> outputs;
};

/// A case that is built when its turn comes, so that one case's memory is held at a time.
struct OpBenchCase {
  std::string name;
  std::vector<std::int64_t> tokens;  // it has a bench of each number of tokens, some several
  std::function<Result<std::vector<OpBench>>(const BenchBackends& site,
                                             const std::vector<std::int64_t>& tokens)>
      build;
  bool is_large = false;  // gigabytes, or many seconds on a CPU, with its fewest tokens too
};

std::vector<OpBenchCase> op_bench_cases();

/// What a device can do at most; 0 where it is not known.
struct Ceilings {
  std::string source;  // "measured on an H200", …
  double bytes_per_second = 0.0;
  double fp8_per_second = 0.0;   // operations, nominal
  double bf16_per_second = 0.0;  // operations, nominal
};

/// Of the GPU `name`; one that the table does not know by what its driver says of its memory
/// (`memory_bytes_per_second`, 0: nothing known).
Ceilings ceilings_of(const std::string& name, double memory_bytes_per_second);

struct OperatorBenchOptions {
  std::string only;        // text that a case's name contains; empty: all
  std::string tokens;      // "1,16": only these numbers of tokens
  std::string out;         // a JSON file to write (bench/results/)
  std::string commit;      // what is measured, for the file
  std::string command;     // for the file
  bool check = true;       // compare results before they are timed
  bool time = true;        // else only that
  bool sustained = false;  // at the clock that a card keeps under this load, not from rest
  Ceilings ceilings;
};

/// Whether there is a case of that name and those tokens: to be asked before a device is opened.
/// Errors: invalid_argument, which names the cases there are.
Status check_choice(const OperatorBenchOptions& options);

/// Checks and times the cases, and prints a table. A call is timed in a graph of many over rotated
/// weights: the median of several replays, divided; long ones from rest, before the card's power
/// limit lowers its clock. Errors: those of check_choice; the first case
/// that fails to run; internal after the last case if a result was wrong; io_error.
Status run_operator_bench(Backend& measured,
                          Backend& reference,
                          const OperatorBenchOptions& options);

}  // namespace koho::app
