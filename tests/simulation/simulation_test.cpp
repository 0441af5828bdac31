// SPDX-License-Identifier: Apache-2.0
// A short run of the simulation for every build; the long ones are `simulate` in CI and by hand.
#include "simulation.h"

#include <gtest/gtest.h>

namespace koho::simulation {
namespace {

TEST(Simulation, HoldsEveryRule) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Report report = simulate({.seed = seed, .events = 25'000});
    EXPECT_EQ(report.violation, "") << "seed " << seed << " after " << report.events << " events";
  }
}

TEST(Simulation, HoldsEveryRuleWithTinyLimits) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Report report = simulate({.seed = seed, .events = 2'000, .shrink = 100});
    EXPECT_EQ(report.violation, "") << "seed " << seed << " after " << report.events << " events";
  }
}

TEST(Simulation, OneSeedIsOneExecution) {
  for (std::uint64_t seed = 100; seed < 104; ++seed) {
    const Options options{.seed = seed, .events = 10'000};
    EXPECT_EQ(simulate(options).trace, simulate(options).trace);
    EXPECT_NE(simulate(options).trace, simulate({.seed = seed + 1000, .events = 10'000}).trace);
  }
}

TEST(Simulation, MeetsEverythingItIsMeantToMeet) {
  Report sum;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Report report = simulate({.seed = seed, .events = 25'000});
    sum.partitioned_worlds += report.partitioned_worlds;
    sum.preempted += report.preempted;
    sum.forked += report.forked;
    sum.deduplicated += report.deduplicated;
    sum.evicted += report.evicted;
    sum.hit_tokens += report.hit_tokens;
    sum.discarded += report.discarded;
    sum.device_failures += report.device_failures;
    sum.pauses += report.pauses;
    sum.cancelled += report.cancelled;
    sum.failed += report.failed;
    sum.constrained += report.constrained;
    sum.late_masks += report.late_masks;
    sum.stop_sequences += report.stop_sequences;
    sum.frozen_rows += report.frozen_rows;
    sum.bounded_steps += report.bounded_steps;
  }
  EXPECT_GT(sum.partitioned_worlds, 3);
  EXPECT_GT(sum.preempted, 100);
  EXPECT_GT(sum.forked, 50);
  EXPECT_GT(sum.deduplicated, 100);
  EXPECT_GT(sum.evicted, 1000);
  EXPECT_GT(sum.hit_tokens, 1000);
  EXPECT_GT(sum.discarded, 100);
  EXPECT_GT(sum.device_failures, 50);
  EXPECT_GT(sum.pauses, 100);
  EXPECT_GT(sum.cancelled, 100);
  EXPECT_GT(sum.failed, 50);
  EXPECT_GT(sum.constrained, 200);
  EXPECT_GT(sum.late_masks, 200);
  EXPECT_GT(sum.stop_sequences, 10);
  EXPECT_GT(sum.frozen_rows, 50);
  EXPECT_GT(sum.bounded_steps, 100);
}

}  // namespace
}  // namespace koho::simulation
