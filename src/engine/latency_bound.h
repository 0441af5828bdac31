// SPDX-License-Identifier: Apache-2.0
// How many prefill tokens a step may hold beside its decodes, so that it stays within the bound on
// the time between two tokens of a request. It learns from the durations of past steps, and changes
// speed only, never a result.
#pragma once

#include <cstdint>

namespace koho {

/// Fits duration = base + cost * prefill tokens: steps that only decode give the base, mixed steps
/// give the cost from what they take beyond the base. The answer begins with kTokensLeast and never
/// exceeds twice the most prefill tokens that a step has had.
class LatencyBound {
 public:
  /// Prefill tokens of a step whatever the bound, so that prompts always progress.
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
  double base_us_ = 0.0;  // mean of recent decode steps
  double weights_ = 0.0;  // of the mixed steps so far
  double tokens_ = 0.0;   // mean of recent mixed steps
  double excess_us_ = 0.0;
  std::int32_t tried_ = 0;  // most prefill tokens in a step
};

}  // namespace koho
