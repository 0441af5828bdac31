// SPDX-License-Identifier: Apache-2.0
// StepResult: what comes back from one step. Its vectors are sized once and keep their capacity.
#pragma once

#include <cstdint>
#include <vector>

namespace koho {

struct StepResult {
  /// Alternatives stored per sample, most likely first (sampling/parameters.h: kTopLogprobsMax).
  static constexpr std::int32_t kTop = 20;

  std::int64_t step = 0;              // of the plan
  std::vector<std::int32_t> tokens;   // [R] as the plan's logit_rows; -1: the logits hold a NaN, or
                                      // no token is allowed
  std::vector<float> logprobs;        // [R], or empty
  std::vector<std::int32_t> top_ids;  // [R, kTop], or empty
  std::vector<float> top_logprobs;    // [R, kTop], or empty
};

}  // namespace koho
