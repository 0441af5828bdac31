// SPDX-License-Identifier: Apache-2.0
// How many prefill tokens may join a step that decodes, so that the step stays within the time a
// reader should wait between two tokens. Learned from the steps themselves; decides speed only,
// never a result.
#pragma once

#include <cstdint>

namespace koho {

/// Fits duration = base + cost * prefill tokens: the base to steps that only decode, the cost to
/// what mixed steps take beyond it. Steps of one kind say nothing of the other, however many.
/// Begins with the least and at most doubles what has been tried.
class LatencyBound {
 public:
  /// Prefill makes this progress whatever the bound.
  static constexpr std::int32_t kTokensLeast = 16;

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
  std::int64_t decode_steps_ = 0;
  double base_us_ = 0.0;  // mean of the decode steps of late
  double weights_ = 0.0;  // of the mixed steps so far
  double tokens_ = 0.0;   // mean of the mixed steps of late
  double excess_us_ = 0.0;
  std::int32_t tried_ = 0;  // most prefill tokens in a step
};

}  // namespace koho
