// SPDX-License-Identifier: Apache-2.0
// How prefill is shared: turns, short prompts, clients, and what is left to those that may pass.
#include "scheduler/fair_order.h"

#include "tests/support/scheduler_harness.h"

namespace koho {
namespace {

TEST(FairOrder, AShortRequestNeedNotWaitForALongPrompt) {
  Harness harness;
  const SequenceId slow = harness.submit(60, 2);
  harness.step();
  const SequenceId first = harness.submit(5, 1, 100);
  const SequenceId second = harness.submit(4, 1, 200);
  const StepBatch* batch = harness.step();
  // A quarter by turn and what is left for the long one, which came first.
  EXPECT_EQ(tokens_of(batch, slow), 16 - 5 - 4);
  EXPECT_EQ(tokens_of(batch, first), 5);
  EXPECT_EQ(tokens_of(batch, second), 4);
  EXPECT_EQ(batch->samples, 2);
  harness.drain();
}

TEST(FairOrder, ShortRequestsLeaveTheFirstInLineItsTurn) {
  for (const std::int32_t percent : {25, 50, 100}) {
    Limits limits = small_limits();
    limits.sequences_max = 16;
    limits.step_tokens_max = 20;
    limits.turn_percent = percent;
    Harness harness(limits);
    const SequenceId slow = harness.submit(60, 1);
    for (int i = 0; i < 10; ++i) harness.submit(8, 1, 100 * i);
    EXPECT_EQ(tokens_of(harness.step(), slow), 20 * percent / 100);
    harness.drain();
  }
}

TEST(FairOrder, TurnsAreKeptWhereAStepHoldsAToken) {
  Limits limits = small_limits();
  limits.sequences_max = 2;
  limits.step_tokens_max = 3;
  limits.mixed_prefill_tokens_max = 1;
  limits.prefill_tokens_max = 1;
  Harness harness(limits);
  const SequenceId slow = harness.submit(60, 1);
  std::int32_t turns = 0;
  for (int i = 0; i < 40; ++i) {
    if (harness.scheduler.waiting() == 0) harness.submit(16, 1, 100 * i);
    turns += tokens_of(harness.step(), slow);
  }
  EXPECT_GE(turns, 10);
  EXPECT_LE(turns, 13);  // and beside the last token of each short one, which takes no budget
}

TEST(FairOrder, ABetterPriorityPrecedesButForTheTurn) {
  Harness harness;
  const SequenceId slow = harness.submit(60, 2, 0, 7);
  harness.step();
  const SequenceId better = harness.submit(16, 1, 100, 3);  // 36 steps before slow
  const StepBatch* batch = harness.step();
  EXPECT_EQ(tokens_of(batch, better), 16);
  EXPECT_EQ(tokens_of(batch, slow), 0);
  harness.drain();
}

TEST(FairOrder, PrefillThatHasWaitedLongHasItsTurnBeforeBetterNewcomers) {
  Limits limits = small_limits();
  limits.aging_steps = 2;
  Harness harness(limits);
  const SequenceId low = harness.submit(60, 2, 0, 1);
  harness.step();
  harness.step();
  const SequenceId high = harness.submit(30, 1, 100, 0);  // as low's precedence, and later
  const StepBatch* batch = harness.step();
  EXPECT_EQ(tokens_of(batch, low), 4);
  EXPECT_EQ(tokens_of(batch, high), 12);
  harness.drain();
}

TEST(FairOrder, AClientThatAsksForLessWaitsForNoOther) {
  Limits limits = small_limits();
  limits.sequences_max = 16;
  limits.live_max = 64;
  limits.step_tokens_max = 20;
  Harness harness(limits);
  // Client 1 sends more than can be computed, of the same size as client 2's only prompt.
  for (int i = 0; i < 30; ++i) harness.submit(15, 1, 100 * i, 0, 1);
  harness.step();
  harness.step();
  const SequenceId other = harness.submit(15, 1, 5000, 0, 2);
  EXPECT_EQ(tokens_of(harness.step(), other), 15);
  harness.drain();
}

TEST(FairOrder, ClientsShareWhatIsNotGivenByTurn) {
  Limits limits = small_limits();
  limits.pages = 1024;
  limits.context_max = 1024;
  limits.step_tokens_max = 24;
  Harness harness(limits);
  const SequenceId first = harness.submit(400, 1, 0, 0, 1);
  const SequenceId second = harness.submit(600, 1, 1000, 0, 2);
  const SequenceId third = harness.submit(800, 1, 2000, 0, 3);
  for (int i = 0; i < 30; ++i) harness.step();
  // 30 steps of 24: a quarter by turn, the rest so that all three had the same.
  EXPECT_NEAR(harness.scheduler.find(first)->computed, 240, 24);
  EXPECT_NEAR(harness.scheduler.find(second)->computed, 240, 24);
  EXPECT_NEAR(harness.scheduler.find(third)->computed, 240, 24);
  // Who comes now has saved nothing up, and owes nothing.
  const SequenceId fourth = harness.submit(900, 1, 3000, 0, 4);
  for (int i = 0; i < 20; ++i) harness.step();
  EXPECT_NEAR(harness.scheduler.find(fourth)->computed, 120, 24);
  EXPECT_NEAR(harness.scheduler.find(third)->computed, 360, 24);
  harness.drain();
}

TEST(FairOrder, ShortOnesPassTheFirstInLineWhileItLacksPages) {
  Limits limits = small_limits();
  limits.pages = 64;
  limits.context_max = 256;
  limits.sequences_max = 8;
  limits.step_tokens_max = 200;
  limits.mixed_prefill_tokens_max = 160;
  limits.aging_steps = 60;
  limits.prefix_cache = false;
  Harness harness(limits);
  const SequenceId holds = harness.submit(100, 150);  // in 25 pages, growing
  harness.step();
  const SequenceId lacks = harness.submit(200, 8, 1000);  // 50 pages
  int passed = 0;
  std::int64_t last = 0;
  for (int i = 0; harness.scheduler.find(lacks)->state == SequenceState::waiting; ++i) {
    ASSERT_LT(i, 200);
    const SequenceId brief = harness.submit(4, 1, 2000 + 100 * i);
    if (tokens_of(harness.step(), brief) == 0) {
      if (harness.scheduler.find(brief) != nullptr) harness.scheduler.finish(brief);
      continue;
    }
    if (harness.scheduler.find(lacks)->state != SequenceState::waiting) break;
    ++passed;
    last = harness.scheduler.steps_planned();
  }
  EXPECT_EQ(harness.scheduler.find(holds), nullptr);
  // As long as aging_steps, then nobody.
  EXPECT_NEAR(passed, 60, 2);
  EXPECT_NEAR(static_cast<double>(last), 62, 2);
  EXPECT_EQ(harness.scheduler.counters().passed, static_cast<std::uint64_t>(passed));
  harness.drain();
}

TEST(FairOrder, ThoseThatPassHaveAnEighthOfThePages) {
  Limits limits = small_limits();
  limits.pages = 64;
  limits.context_max = 256;
  limits.sequences_max = 16;
  limits.step_tokens_max = 200;
  limits.mixed_prefill_tokens_max = 160;
  limits.prefix_cache = false;
  Harness harness(limits);
  harness.submit(100, 40);
  harness.step();
  const SequenceId lacks = harness.submit(200, 8, 1000);
  for (int i = 0; i < 8; ++i) harness.submit(12, 4, 2000 + 100 * i);  // 3 pages, growing to 4
  harness.step();
  EXPECT_EQ(harness.scheduler.find(lacks)->state, SequenceState::waiting);
  EXPECT_EQ(harness.scheduler.counters().passed, 2U);
  harness.drain();
}

TEST(FairOrder, LongPromptsLeaveSomeBatchSlotsAndPagesToShortOnes) {
  Limits limits = small_limits();
  limits.tokens_per_page = 16;
  limits.pages = 2048;
  limits.context_max = 512;
  limits.sequences_max = 32;
  limits.live_max = 64;
  limits.step_tokens_max = 132;
  limits.mixed_prefill_tokens_max = 100;
  Harness harness(limits);
  for (int i = 0; i < 40; ++i) harness.submit(76, 300, 1000 * i);
  for (int i = 0; i < 50; ++i) harness.step();
  EXPECT_EQ(harness.scheduler.running().size(), 31U);
  const SequenceId brief = harness.submit(64, 10, 100000);  // short: within the 75
  EXPECT_EQ(tokens_of(harness.step(), brief), 64);
  EXPECT_EQ(harness.scheduler.running().size(), 32U);
  harness.drain();
}

TEST(FairOrder, APromptThatIsCachedCountsAsShort) {
  Limits limits = small_limits();
  limits.sequences_max = 8;
  Harness harness(limits);
  harness.submit(49, 1);
  harness.drain();
  harness.submit(60, 1, 1000);  // longer than a step
  harness.step();
  const SequenceId cached = harness.submit(52, 1);
  EXPECT_EQ(tokens_of(harness.step(), cached), 4);
  harness.drain();
}

}  // namespace
}  // namespace koho
