// SPDX-License-Identifier: Apache-2.0
// The operators at a model's shapes: one list of cases for parity and speed. A case has its
// operands twice, on the backend that is measured and on a CPU backend, the reference; its results
// are compared (bench/operator_check.h), then the measured backend's calls are timed over weights
// that are rotated out of the caches.
#pragma once

#include <cstdint>
#include <string>

#include "bench/operators/operator_case.h"
#include "ops/backend.h"

namespace koho::bench {

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

}  // namespace koho::bench
