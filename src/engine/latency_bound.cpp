// SPDX-License-Identifier: Apache-2.0
#include "engine/latency_bound.h"

#include <algorithm>

namespace koho {
namespace {

/// Weight of the newest step: the last fifty or so count.
constexpr double kNewest = 0.02;
/// Prefill makes some progress whatever the bound: a whole cache page.
constexpr std::int32_t kLeast = 64;

}  // namespace

void LatencyBound::observe(std::int32_t prefill_tokens, std::int64_t duration_us) {
  const auto x = static_cast<double>(prefill_tokens);
  const auto y = static_cast<double>(duration_us);
  ++observed_;
  // The first steps count alike.
  const double weight = std::max(kNewest, 1.0 / static_cast<double>(observed_));
  mean_x_ += weight * (x - mean_x_);
  mean_y_ += weight * (y - mean_y_);
  mean_xx_ += weight * (x * x - mean_xx_);
  mean_xy_ += weight * (x * y - mean_xy_);
}

std::int32_t LatencyBound::prefill_tokens() const {
  if (bound_us_ == 0 || mean_x_ < 1.0) return tokens_max_;
  const double variance = mean_xx_ - mean_x_ * mean_x_;
  const double covariance = mean_xy_ - mean_x_ * mean_y_;
  // Steps of one size do not tell a from b: blame the prefill, which varies the sizes.
  const bool fits = variance > 1.0 && covariance > 0.0;
  const double per_token = fits ? covariance / variance : mean_y_ / mean_x_;
  const double base = fits ? mean_y_ - per_token * mean_x_ : 0.0;
  const double tokens = (static_cast<double>(bound_us_) - base) / std::max(per_token, 1e-6);
  const double least = std::min(kLeast, tokens_max_);
  return static_cast<std::int32_t>(std::clamp(tokens, least, static_cast<double>(tokens_max_)));
}

}  // namespace koho
