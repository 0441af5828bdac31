// SPDX-License-Identifier: Apache-2.0
// StepResult: what comes back from one step, of one rank or of all together. Its vectors are sized
// once and keep their capacity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "sampling/output_record.h"

namespace koho {

/// In a rank's result: another rank samples this row.
inline constexpr std::int32_t kSampledElsewhere = -2;

struct StepResult {
  /// Alternatives stored per sample, most likely first (sampling/parameters.h: kTopLogprobsMax).
  static constexpr std::int32_t kTop = 20;

  std::int64_t step = 0;              // of the plan
  std::vector<std::int32_t> tokens;   // [R] as the plan's logit_rows; -1: the logits hold a NaN, or
                                      // no token is allowed
  std::vector<RowEnd> ends;           // [R] what the ranks found of each row's output
  std::vector<float> logprobs;        // [R], or empty
  std::vector<std::int32_t> top_ids;  // [R, kTop], or empty
  std::vector<float> top_logprobs;    // [R, kTop], or empty
  /// The rows whose logits this result has, ascending: of all ranks together, the plan's
  /// logits_wanted. Room for them comes with the first.
  std::vector<std::int32_t> logits_rows;
  std::vector<float> logits;  // [logits_rows, V]: what each row was sampled from, unmodified

  /// So that results of so many rows allocate nothing.
  void reserve(std::size_t samples) {
    tokens.reserve(samples);
    ends.reserve(samples);
    logprobs.reserve(samples);
    top_ids.reserve(samples * kTop);
    top_logprobs.reserve(samples * kTop);
  }
};

/// Who samples a row.
enum class RowOwners : std::uint8_t { all_ranks, one_rank };

/// Puts the ranks' results of one step together: rank 0's, which all others must equal, or each row
/// from the rank that sampled it; each row's logits come from the one rank that has them. Rank 0's
/// vectors are exchanged for `result`'s. Errors: internal: ranks differ in step, length or a token,
/// a row was sampled by none or by two, or two have its logits; names the rank and the row.
Status merge_results(std::span<StepResult> ranks, RowOwners owners, StepResult& result);

}  // namespace koho
