// SPDX-License-Identifier: Apache-2.0
// The logits' rule of docs/goldens.md: how far koho may be from the reference.
#pragma once

#include <cstddef>
#include <span>

namespace koho::testing {

/// Relative L2 distance of `found` from `expected`, median over rows of `width`; not finite if any
/// row's is not.
double median_distance(std::span<const float> found,
                       std::span<const float> expected,
                       std::size_t width);

/// The largest median distance from the reference's float32 run, where `noise` is that of the
/// reference's own bfloat16 run.
constexpr double median_bound(double noise) {
  return 1.35 * noise + 0.005;
}

}  // namespace koho::testing
