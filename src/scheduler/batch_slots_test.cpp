// SPDX-License-Identifier: Apache-2.0
// How clients share batch slots: who yields to whom, how often, and what nobody is asked to give.
#include "tests/support/scheduler_harness.h"

namespace koho {
namespace {

constexpr std::uint64_t kMany = 1;  // who sends more than the batch holds
constexpr std::uint64_t kOther = 2;

Limits limits_of(std::int32_t batch_slots) {
  Limits limits = small_limits();
  limits.pages = 4096;
  limits.context_max = 2048;
  limits.sequences_max = batch_slots;
  limits.live_max = 64;
  limits.step_tokens_max = batch_slots + 32;
  limits.mixed_prefill_tokens_max = 32;
  return limits;
}

/// Fills the batch with long answers of one client, and lets as many wait.
std::vector<SequenceId> fill(Harness& harness, int priority = 0) {
  const std::int32_t batch_slots = harness.scheduler.limits().sequences_max;
  std::vector<SequenceId> longs;
  for (int i = 0; i < 2 * batch_slots; ++i)
    longs.push_back(harness.submit(5, 1000, 2000 * i, priority, kMany));
  while (static_cast<std::int32_t>(harness.scheduler.running().size()) < batch_slots)
    harness.step();
  return longs;
}

std::int32_t running_of(const Harness& harness, const std::vector<SequenceId>& ids) {
  std::int32_t count = 0;
  for (const SequenceId id : ids) {
    const Sequence* sequence = harness.scheduler.find(id);
    count += sequence != nullptr && sequence->state == SequenceState::running ? 1 : 0;
  }
  return count;
}

TEST(BatchSlots, AClientThatWaitsIsGivenOneOfAnotherClientsAtOnce) {
  for (const std::int32_t batch_slots : {2, 4, 16}) {
    Harness harness(limits_of(batch_slots));
    const std::vector<SequenceId> longs = fill(harness);
    const SequenceId other = harness.submit(6, 2, 100'000, 0, kOther);
    const StepBatch* batch = harness.step();
    EXPECT_EQ(tokens_of(batch, other), 6) << batch_slots;
    // The youngest of those that ran.
    const SequenceId yielded = longs[static_cast<std::size_t>(batch_slots - 1)];
    EXPECT_EQ(batch->yielded, std::vector{yielded});
    EXPECT_EQ(running_of(harness, longs), batch_slots - 1);
    harness.step();
    EXPECT_EQ(harness.scheduler.find(other), nullptr) << "two tokens, two steps";
    harness.step();
    EXPECT_EQ(harness.scheduler.find(yielded)->state, SequenceState::running);
    EXPECT_EQ(harness.scheduler.counters().yielded, 1U);
  }
}

TEST(BatchSlots, NobodyYieldsToItsOwnClientNorToOneThatHasAsMany) {
  Harness harness(limits_of(8));
  const std::vector<SequenceId> longs = fill(harness);
  for (int i = 0; i < 50; ++i) harness.step();
  EXPECT_EQ(harness.scheduler.counters().yielded, 0U);
  std::vector<SequenceId> others;
  for (int i = 0; i < 10; ++i)
    others.push_back(harness.submit(5, 1000, 100'000 + 2000 * i, 0, kOther));
  for (int i = 0; i < 200; ++i) harness.step();
  EXPECT_EQ(running_of(harness, longs), 4);
  EXPECT_EQ(running_of(harness, others), 4);
  EXPECT_EQ(harness.scheduler.counters().yielded, 4U);
}

TEST(BatchSlots, AFreeOneGoesToTheClientWithFewest) {
  Harness harness(limits_of(4));
  const std::vector<SequenceId> longs = fill(harness);
  const SequenceId first = harness.submit(5, 3, 100'000, 0, kOther);
  harness.step();
  // Comes while the first one runs, behind four of the other client that wait.
  const SequenceId second = harness.submit(5, 3, 200'000, 0, kOther);
  harness.scheduler.finish(longs[0]);
  EXPECT_EQ(tokens_of(harness.step(), second), 5);
  EXPECT_EQ(harness.scheduler.counters().yielded, 1U) << "that of the first";
  harness.step();
  EXPECT_EQ(harness.scheduler.find(first), nullptr);
}

TEST(BatchSlots, ABetterPriorityYieldsNothing) {
  Harness harness(limits_of(4));
  fill(harness, 1);
  harness.submit(5, 3, 100'000, 2, kOther);
  harness.step();
  EXPECT_EQ(harness.scheduler.counters().yielded, 0U);
  harness.submit(5, 3, 200'000, 0, kOther);
  harness.step();
  EXPECT_EQ(harness.scheduler.counters().yielded, 1U);
}

TEST(BatchSlots, PagesAreTakenInTheSameWay) {
  Limits limits = limits_of(4);
  limits.pages = 256;
  limits.context_max = 1024;
  Harness harness(limits);
  fill(harness);
  // Their answers fill the pages, one gives way to the others.
  while (harness.scheduler.counters().preempted < 2) harness.step();
  const auto yielded = harness.scheduler.counters().yielded;
  const SequenceId other = harness.submit(60, 2, 100'000, 0, kOther);
  for (int i = 0; i < 4; ++i) harness.step();
  EXPECT_EQ(harness.scheduler.find(other), nullptr);
  EXPECT_LE(harness.scheduler.counters().yielded, yielded + 1);
}

TEST(BatchSlots, WhatIsComputedAgainIsAtMostATwentiethOfWhatWasGenerated) {
  for (const bool cached : {true, false}) {
    Limits limits = limits_of(4);
    limits.prefix_cache = cached;
    Harness harness(limits);
    fill(harness);
    // One short request after another, the batch slot being taken back in between.
    SequenceId other = kNoSequence;
    for (int i = 0; i < 3000; ++i) {
      if (i % 3 == 0 && harness.scheduler.find(other) == nullptr)
        other = harness.submit(4, 1, 100'000 + 10 * i, 0, kOther);
      harness.step();
      for (const Sequence& sequence : harness.scheduler.sequences()) {
        if (sequence.state == SequenceState::unused || sequence.recomputed == 0) continue;
        // The last time apart, which may be all of it.
        const std::int32_t generated = sequence.known() - sequence.prompt_length;
        ASSERT_LE(sequence.recomputed, generated / 20 + (cached ? 8 : sequence.known()));
      }
    }
    // Eight answers of 1,000 tokens, each computing some four again when it yields; without the
    // prefix cache all that it knows.
    const std::uint64_t yielded = harness.scheduler.counters().yielded;
    EXPECT_GT(yielded, cached ? 50U : 7U);
    EXPECT_LT(yielded, cached ? 400U : 25U);
  }
}

TEST(BatchSlots, EverybodyEndsWhileAnotherClientAlwaysWaits) {
  Limits limits = limits_of(4);
  Harness harness(limits);
  const std::vector<SequenceId> longs = fill(harness);
  const auto submit_other = [&](int n) { return harness.submit(4, 3, 10 * n, 0, kOther); };
  const int steps = harness.steps_beside_others(longs, 6, submit_other, 10'000);
  // Two of four batch slots are theirs: eight answers of 1,000 take 4,000 steps.
  EXPECT_NEAR(steps, 4000, 400);
}

}  // namespace
}  // namespace koho
