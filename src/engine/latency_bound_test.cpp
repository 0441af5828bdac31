// SPDX-License-Identifier: Apache-2.0
#include "engine/latency_bound.h"

#include <algorithm>

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
  EXPECT_EQ(settle(bound, 10'000, 20), LatencyBound::kTokensLeast);
}

TEST(LatencyBound, BeginsWithTheLeastAndDoublesWhatWasTried) {
  LatencyBound bound(50'000, 8192);
  EXPECT_EQ(bound.prefill_tokens(), LatencyBound::kTokensLeast);
  std::int32_t most = 0;
  for (int step = 0; step < 20; ++step) {
    const std::int32_t tokens = bound.prefill_tokens();
    EXPECT_LE(tokens, std::max(LatencyBound::kTokensLeast, 2 * most));
    EXPECT_LE(10'000 + 20 * tokens, 50'000);
    most = std::max(most, tokens);
    bound.observe(tokens, 10'000 + 20 * tokens);
  }
  EXPECT_GT(most, 1500);
}

TEST(LatencyBound, RemembersThePrefillThroughManyDecodeSteps) {
  LatencyBound bound(100'000, 512);
  for (int step = 0; step < 300; ++step) bound.observe(0, 20'000);
  EXPECT_EQ(bound.prefill_tokens(), LatencyBound::kTokensLeast);
  for (int step = 0; step < 20; ++step) {
    const std::int32_t tokens = bound.prefill_tokens();
    EXPECT_LE(20'000 + 1000 * tokens, 100'000) << "step " << step;
    bound.observe(tokens, 20'000 + 1000 * tokens);
  }
  EXPECT_NEAR(bound.prefill_tokens(), 80, 1);
  for (int step = 0; step < 1000; ++step) bound.observe(0, 20'000);
  EXPECT_NEAR(bound.prefill_tokens(), 80, 1);
  // More decodes leave less room; fewer give it back.
  for (int step = 0; step < 100; ++step) bound.observe(0, 60'000);
  EXPECT_NEAR(bound.prefill_tokens(), 40, 1);
}

TEST(LatencyBound, AFewTokensInTheNoiseChangeLittle) {
  LatencyBound bound(50'000, 8192);
  settle(bound, 10'000, 20);
  for (int step = 0; step < 200; ++step) bound.observe(1, step % 2 == 0 ? 9'000 : 13'000);
  EXPECT_NEAR(bound.prefill_tokens(), 2000, 300);
}

TEST(LatencyBound, PrefillThatCostsNothingGrowsToTheBudget) {
  LatencyBound bound(50'000, 300);
  EXPECT_EQ(settle(bound, 10'000, 0), 300);
}

TEST(LatencyBound, NeverExceedsTheBudget) {
  LatencyBound bound(1'000'000, 256);
  EXPECT_EQ(settle(bound, 1000, 1), 256);
  LatencyBound off(0, 256);
  EXPECT_EQ(settle(off, 1e9, 1e6), 256);
}

}  // namespace
}  // namespace koho
