// SPDX-License-Identifier: Apache-2.0
// How many prefill tokens may join a step that decodes, so that the step stays within the time a
// reader should wait between two tokens. Learned from the steps themselves; decides speed only,
// never a result.
#pragma once

#include <cstdint>

namespace koho {

/// Fits duration = a + b * prefill tokens to the mixed steps and the decode steps of late (linear
/// regression over exponentially weighted means) and solves for the bound.
class LatencyBound {
 public:
  /// `bound_us` 0: no bound. Requires: tokens_max > 0.
  LatencyBound(std::int64_t bound_us, std::int32_t tokens_max)
      : bound_us_(bound_us), tokens_max_(tokens_max) {}

  /// A step with decodes and `prefill_tokens` beside them took so long.
  void observe(std::int32_t prefill_tokens, std::int64_t duration_us);
  /// 1 .. tokens_max.
  std::int32_t prefill_tokens() const;

 private:
  std::int64_t bound_us_;
  std::int32_t tokens_max_;
  std::int64_t observed_ = 0;
  double mean_x_ = 0.0;  // prefill tokens
  double mean_y_ = 0.0;  // microseconds
  double mean_xx_ = 0.0;
  double mean_xy_ = 0.0;
};

}  // namespace koho
