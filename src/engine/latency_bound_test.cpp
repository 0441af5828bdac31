// SPDX-License-Identifier: Apache-2.0
#include "engine/latency_bound.h"

#include <gtest/gtest.h>

namespace koho {
namespace {

/// Runs steps of a machine that needs `base` and `per_token` microseconds; the prompts waiting
/// always fill the budget but for a decode-only step now and then.
std::int32_t settle(LatencyBound& bound, double base, double per_token) {
  for (int step = 0; step < 500; ++step) {
    const std::int32_t tokens = step % 7 == 0 ? 0 : bound.prefill_tokens();
    bound.observe(tokens, static_cast<std::int64_t>(base + per_token * tokens));
  }
  return bound.prefill_tokens();
}

TEST(LatencyBound, FindsThePrefillThatFitsTheBound) {
  LatencyBound bound(50'000, 8192);
  // (50 ms - 10 ms) / 20 us = 2000 tokens
  EXPECT_NEAR(settle(bound, 10'000, 20), 2000, 20);
}

TEST(LatencyBound, FollowsAMachineThatChanges) {
  LatencyBound bound(50'000, 8192);
  settle(bound, 10'000, 20);
  EXPECT_NEAR(settle(bound, 30'000, 40), 500, 10);
}

TEST(LatencyBound, KeepsSomePrefillIfDecodesAloneTakeTooLong) {
  LatencyBound bound(5'000, 8192);
  EXPECT_EQ(settle(bound, 10'000, 20), 64);
}

TEST(LatencyBound, NeverExceedsTheBudget) {
  LatencyBound bound(1'000'000, 256);
  EXPECT_EQ(settle(bound, 1000, 1), 256);
  LatencyBound off(0, 256);
  EXPECT_EQ(settle(off, 1e9, 1e6), 256);
}

}  // namespace
}  // namespace koho
