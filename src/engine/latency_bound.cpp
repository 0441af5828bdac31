// SPDX-License-Identifier: Apache-2.0
// The running means behind the fit, and how far a step may go beyond what has been tried.
#include "engine/latency_bound.h"

#include <algorithm>

namespace koho {
namespace {

/// Weight of the newest step: the last dozen or so count.
constexpr double kNewest = 0.125;

}  // namespace

void LatencyBound::observe(std::int32_t prefill_tokens, std::int64_t duration_us) {
  const auto duration = static_cast<double>(duration_us);
  if (prefill_tokens == 0) {
    ++decode_steps_;
    // The first steps count alike.
    const double weight = std::max(kNewest, 1.0 / static_cast<double>(decode_steps_));
    base_us_ += weight * (duration - base_us_);
    return;
  }
  // A step that does more, in less time: there are fewer decodes than there were.
  base_us_ = std::min(base_us_, duration);
  // A step counts by how much of the budget it used: a few tokens' cost drowns in the noise.
  const double share = std::min(1.0, static_cast<double>(prefill_tokens) / this->prefill_tokens());
  weights_ += share;
  const double weight = share * std::max(kNewest, 1.0 / weights_);
  tokens_ += weight * (prefill_tokens - tokens_);
  excess_us_ += weight * (duration - base_us_ - excess_us_);
  tried_ = std::max(tried_, prefill_tokens);
}

std::int32_t LatencyBound::prefill_tokens() const {
  if (bound_us_ == 0) return tokens_max_;
  const std::int32_t least = std::min(kTokensLeast, tokens_max_);
  const std::int32_t most = std::clamp(2 * tried_, least, tokens_max_);
  const double left = static_cast<double>(bound_us_) - base_us_;
  if (left <= 0.0) return least;
  // Not divided: mixed steps may have cost nothing.
  if (left * tokens_ >= excess_us_ * most) return most;
  return std::max(least, static_cast<std::int32_t>(left * tokens_ / excess_us_));
}

}  // namespace koho
