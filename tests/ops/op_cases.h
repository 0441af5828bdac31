// SPDX-License-Identifier: Apache-2.0
// The operator cases of bench/operators/ that have a random shape, each ready to run on a backend:
// check_parity (operator_parity.h) bound to it. The same list drives every backend.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace koho::testing {

/// What a backend promises beside the operators' contracts.
struct OpCaseOptions {
  /// A row's bits do not depend on the other rows of its batch: checked by running a row alone.
  bool batch_invariant = true;
  /// A row of a linear layer has the bits of the same row alone also among many tokens (97 and
  /// more), which a backend may give to a library.
  bool large_batch_invariant = true;
  /// Largest error of a linear layer's sum, in parts of sum |x w|: f32 accumulation in any order of
  /// up to some thousand products; tensor cores that keep fewer bits say so.
  double accumulation_error = 4e-6;
  /// In its place for layers of bf16 alone, if it is not 0 and the wider: for each 16 columns,
  /// which an instruction takes into a chain of sums in f32.
  double chain_error = 0.0;
  /// What the softmax's weights are rounded by before they multiply v: 0 in f32, 2^-8 in bf16.
  double attention_weight_error = 0.0;
  /// Over e4m3 pages: half the last step of a weight times its v scale, in parts of the largest
  /// weight times the largest v scale; 0 in f32. An element whose large weights meet zeros consists
  /// of the small ones.
  double attention_weight_step = 0.0;
  /// How far the backend knows a token's probability, in parts of it, when it adds up to top_p.
  double sampling_weight_error = 0.0;
  /// Sums side by side that a router's logit is added in, at least.
  double router_chains = 1.0;
  /// A row that is decoded has the bits of the same row in a longer run.
  bool decode_matches_prefill = true;
  /// Standard deviation of what an instruction of 32 FP8 products loses, in parts of its largest
  /// term; 0 if sums are in f32. Experts' tolerances use it, since a bound of its worst case
  /// would put most quantised values of the inner activation on a rounding boundary.
  double instruction_error = 0.0;
};

struct OpCase {
  std::string name;
  /// Runs the case once on each of some backends that read each other's memory. Returns what was
  /// wrong, in words; empty = nothing.
  std::function<std::string(
      const std::vector<Backend*>& backends, std::uint64_t seed, const OpCaseOptions& options)>
      run_on;
  /// Takes seconds on a CPU: tests that run many rounds run few of these.
  bool is_large = false;
  /// Rounds beyond these would show little for their time.
  std::uint64_t rounds_max = UINT64_MAX;

  std::string run(Backend& backend, std::uint64_t seed, const OpCaseOptions& options) const {
    return run_on({&backend}, seed, options);
  }
};

const std::vector<OpCase>& op_cases();

}  // namespace koho::testing
