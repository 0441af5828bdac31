// SPDX-License-Identifier: Apache-2.0
// How clients share pages: who waits for none, who gives way, and what nobody is asked to give.
#include <limits>

#include "tests/support/scheduler_harness.h"
#include "tests/support/thread_time.h"

namespace koho {
namespace {

constexpr std::uint64_t kMany = 1;  // whose answers fill the pages
constexpr std::uint64_t kOther = 2;

Limits limits_of(std::int32_t pages) {
  Limits limits = small_limits();
  limits.pages = pages;
  limits.context_max = 256;
  limits.sequences_max = 16;
  limits.live_max = 64;
  limits.step_tokens_max = 48;
  limits.mixed_prefill_tokens_max = 32;
  return limits;
}

/// Long answers of one client; all run.
std::vector<SequenceId> start(Harness& harness, int count, int priority = 0, int answer = 200) {
  std::vector<SequenceId> longs;
  for (int i = 0; i < count; ++i)
    longs.push_back(harness.submit(4, answer, 1000 * i, priority, kMany));
  while (std::ssize(harness.scheduler.running()) < count) harness.step();
  return longs;
}

void fill_pages(Harness& harness, int left) {
  while (harness.scheduler.pool().available() > left) harness.step();
}

TEST(PageShares, AShortOneTakesTheLastPagesOfAnotherClient) {
  Harness harness(limits_of(67));
  start(harness, 10);
  fill_pages(harness, 7);
  const SequenceId same = harness.submit(3, 2, 100'000, 0, kMany);
  const SequenceId other = harness.submit(3, 2, 200'000, 0, kOther);
  const StepBatch* batch = harness.step();
  EXPECT_EQ(tokens_of(batch, same), 0) << "ten that can grow have seven pages";
  EXPECT_EQ(tokens_of(batch, other), 3);
  EXPECT_EQ(harness.scheduler.counters().yielded, 0U);
}

TEST(PageShares, TheClientWithMostGivesWayToTheGrowthOfOthers) {
  Harness harness(limits_of(60));
  const std::vector<SequenceId> longs = start(harness, 10);
  fill_pages(harness, 10);
  const SequenceId other = harness.submit(3, 40, 200'000, 0, kOther);
  while (harness.scheduler.find(other) != nullptr) {
    harness.step();
    const Sequence* sequence = harness.scheduler.find(other);
    ASSERT_TRUE(sequence == nullptr || sequence->admissions == 1) << "the youngest was preempted";
  }
  EXPECT_GT(harness.scheduler.counters().preempted, 2U);
  EXPECT_EQ(harness.scheduler.find(longs[9])->state, SequenceState::waiting);
}

TEST(PageShares, WhoWaitsIsGivenPagesOfAnotherClientAtOnce) {
  Harness harness(limits_of(60));
  start(harness, 10);
  fill_pages(harness, 2);
  const SequenceId other = harness.submit(12, 2, 200'000, 0, kOther);
  EXPECT_EQ(tokens_of(harness.step(), other), 12);
  EXPECT_EQ(harness.scheduler.counters().yielded, 1U);
}

TEST(PageShares, SeveralGiveWhatNoSingleOneHas) {
  Harness harness(limits_of(60));
  start(harness, 10);
  fill_pages(harness, 2);
  const SequenceId other = harness.submit(28, 2, 200'000, 0, kOther);
  const StepBatch* batch = harness.step();
  EXPECT_EQ(tokens_of(batch, other), 28);
  EXPECT_EQ(batch->yielded.size(), 2U);
  EXPECT_EQ(harness.scheduler.counters().yielded, 2U);
}

TEST(PageShares, AForkGivesOnlyThePagesThatAreItsOwn) {
  Limits limits = limits_of(60);
  limits.prefix_cache = false;  // what they generate is the same
  limits.step_tokens_max = 128;
  limits.mixed_prefill_tokens_max = 100;
  Harness harness(limits);
  std::vector<Token> prompt(120);
  std::iota(prompt.begin(), prompt.end(), 0);
  std::vector<SequenceId> forks;
  SequenceRequest request;
  request.prompt = prompt;
  request.completion_max = 100;
  request.client = kMany;
  for (int i = 0; i < 10; ++i) {
    if (i > 0) request.fork_of = forks.front();
    forks.push_back(*harness.scheduler.submit(request));
  }
  while (std::ssize(harness.scheduler.running()) < 10) harness.step();
  fill_pages(harness, 2);
  const SequenceId other = harness.submit(28, 2, 200'000, 0, kOther);
  const StepBatch* batch = harness.step();
  EXPECT_EQ(tokens_of(batch, other), 28);
  EXPECT_GT(batch->yielded.size(), 1U) << "none has so many pages of its own";
}

TEST(PageShares, ABetterPriorityGivesNoWay) {
  Harness harness(limits_of(60));
  start(harness, 10, 1);
  fill_pages(harness, 2);
  const SequenceId worse = harness.submit(12, 2, 100'000, 2, kOther);
  EXPECT_EQ(tokens_of(harness.step(), worse), 0);
  EXPECT_EQ(harness.scheduler.counters().yielded, 0U);
  const SequenceId equal = harness.submit(12, 30, 200'000, 1, kOther);
  EXPECT_EQ(tokens_of(harness.step(), equal), 12);
  // Nor to the growth of one that runs.
  Harness growing(limits_of(60));
  const SequenceId young = growing.submit(4, 60, 200'000, 2, kOther);
  start(growing, 10, 1);
  const SequenceId younger = growing.submit(4, 60, 300'000, 2, kOther);
  while (growing.scheduler.counters().preempted == 0) growing.step();
  EXPECT_EQ(growing.scheduler.find(young)->state, SequenceState::running);
  EXPECT_EQ(growing.scheduler.find(younger)->state, SequenceState::waiting);
}

TEST(PageShares, AWorsePriorityIsPreemptedForABetterOneOfItsClient) {
  Harness harness(limits_of(60));
  const std::vector<SequenceId> worse = start(harness, 9, 7);
  const SequenceId better = harness.submit(4, 100, 200'000, 0, kMany);
  while (harness.scheduler.counters().preempted == 0) harness.step();
  EXPECT_EQ(harness.scheduler.find(better)->state, SequenceState::running);
  EXPECT_EQ(harness.scheduler.find(worse.back())->state, SequenceState::waiting);
}

TEST(PageShares, NobodyYieldsItsClientsOnlySequenceNorToOneWithHalfAsManyPages) {
  Harness harness(limits_of(32));
  const SequenceId only = harness.submit(110, 18, 0, 0, kMany);
  while (harness.step()->decodes == 0) continue;
  const SequenceId other = harness.submit(16, 2, 200'000, 0, kOther);
  harness.step();
  EXPECT_EQ(harness.scheduler.find(other)->state, SequenceState::waiting);
  EXPECT_EQ(harness.scheduler.find(only)->state, SequenceState::running);

  Harness two(limits_of(60));
  start(two, 5);
  for (int i = 0; i < 5; ++i) two.submit(4, 200, 50'000 + 1000 * i, 0, kOther);
  fill_pages(two, 2);
  two.submit(12, 2, 200'000, 0, kOther);
  two.step();
  EXPECT_EQ(two.scheduler.counters().yielded, 0U);
}

TEST(PageShares, WhatOthersComeToGiveIsNoticedThoughNobodyLeft) {
  Harness harness(limits_of(32));
  start(harness, 3, 0, 100);
  fill_pages(harness, 11);
  // Eight pages; with one for each of the three that grow, and one for short prompts, twelve.
  const SequenceId other = harness.submit(32, 2, 200'000, 0, kOther);
  harness.step();
  EXPECT_EQ(harness.scheduler.find(other)->state, SequenceState::waiting);
  // Two of three have twice as many then.
  fill_pages(harness, 8);
  EXPECT_EQ(tokens_of(harness.step(), other), 32);
  EXPECT_EQ(harness.scheduler.counters().preempted, 0U);
}

TEST(PageShares, WhoHasMorePagesPassesTheFirstInLineWithAnEighthOnly) {
  Harness harness(limits_of(60));
  for (int i = 0; i < 2; ++i) harness.submit(72, 20, 1000 * i, 0, kOther);
  for (int i = 0; i < 4; ++i) harness.submit(3, 50, 10'000 + 1000 * i, 0, kMany);
  while (harness.scheduler.running().size() < 6) harness.step();
  const SequenceId first = harness.submit(120, 2, 50'000, 0, kMany);
  harness.step();
  const SequenceId passes = harness.submit(30, 2, 100'000, 0, kOther);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tokens_of(harness.step(), passes), 0);
  while (harness.scheduler.find(first)->state != SequenceState::running) harness.step();
  EXPECT_EQ(harness.scheduler.find(passes)->admissions, 0);
}

TEST(PageShares, AWorsePriorityPassesTheFirstInLineWithAnEighthOnly) {
  Harness harness(limits_of(60));
  harness.submit(100, 60, 0, 0, kMany);
  while (harness.step()->decodes == 0) continue;
  const SequenceId first = harness.submit(160, 2, 50'000, 0, kMany);
  harness.step();
  std::vector<SequenceId> worse;
  for (int i = 0; i < 6; ++i)
    worse.push_back(harness.submit(11, 50, 100'000 + 1000 * i, 1, kOther));
  for (int i = 0; i < 8; ++i) harness.step();
  EXPECT_EQ(harness.scheduler.find(first)->state, SequenceState::waiting);
  // Three pages each when they are admitted, of seven.
  EXPECT_EQ(std::ranges::count_if(worse,
                                  [&](SequenceId id) {
                                    return harness.scheduler.find(id)->state ==
                                           SequenceState::running;
                                  }),
            2);
}

TEST(PageShares, WhatWasCachedWhenItBeganToWaitTakesNoStepBeforeShortOnes) {
  Limits limits = limits_of(60);
  Harness harness(limits);
  const std::vector<SequenceId> longs = start(harness, 10);
  while (harness.scheduler.counters().preempted == 0) harness.step();
  EXPECT_EQ(harness.scheduler.find(longs[9])->state, SequenceState::waiting);
  EXPECT_LE(harness.scheduler.find(longs[9])->tokens_to_compute, limits.tokens_per_page);
  // Its pages go to the others, and then they end.
  for (int i = 0; i < 20; ++i) harness.step();
  for (int i = 0; i < 8; ++i) harness.scheduler.finish(longs[static_cast<std::size_t>(i)]);
  std::vector<SequenceId> shorts;
  for (int i = 0; i < 4; ++i) shorts.push_back(harness.submit(4, 2, 200'000 + 10 * i, 0, kMany));
  const StepBatch* batch = harness.step();
  for (const SequenceId id : shorts) EXPECT_EQ(tokens_of(batch, id), 4);
}

TEST(PageShares, EverybodyEndsWhileShortOnesAlwaysCome) {
  Harness harness(limits_of(60));
  const std::vector<SequenceId> longs = start(harness, 10);
  const auto submit_other = [&](int n) {
    return harness.submit(4, 6, 100'000 + 10 * n, 0, kOther);
  };
  const int steps = harness.steps_beside_others(longs, 3, submit_other, 5000);
  // One answer of 51 pages at a time, 200 steps each, if nothing could be done beside it.
  EXPECT_LT(steps, 2000);
}

/// These steps took 100 to 400 ms each when everybody who waits was asked who would yield to it.
TEST(PageShares, APlanTakesNoLongerWhileThousandsWait) {
  Limits limits;
  limits.tokens_per_page = 16;
  limits.pages = 1200;
  limits.context_max = 4096;
  limits.sequences_max = 256;
  limits.live_max = 5000;
  limits.step_tokens_max = 8192;
  limits.mixed_prefill_tokens_max = 2048;
  Harness harness(limits);
  start(harness, 100, 0, 2000);
  for (int i = 0; i < 4000; ++i)
    harness.submit(640, 100, 100 * i, 0, kOther + static_cast<std::uint64_t>(i));
  while (harness.scheduler.counters().yielded == 0) harness.step();
  double shortest_us = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const double begin_us = testing::thread_us();
    const StepBatch* batch = harness.scheduler.plan();
    shortest_us = std::min(shortest_us, testing::thread_us() - begin_us);
    if (batch != nullptr) harness.collect();
  }
  EXPECT_LT(shortest_us, 40'000);
}

}  // namespace
}  // namespace koho
