// SPDX-License-Identifier: Apache-2.0
// The scheduler's decisions one by one. What holds over all histories: tests/simulation.
#include "scheduler/scheduler.h"

#include <numeric>

#include <gtest/gtest.h>

namespace koho {
namespace {

Limits small_limits() {
  Limits limits;
  limits.tokens_per_page = 4;
  limits.pages = 32;
  limits.context_max = 64;
  limits.sequences_max = 4;
  limits.live_max = 16;
  limits.step_tokens_max = 16;
  limits.mixed_prefill_tokens_max = 4;
  limits.aging_steps = 10;
  return limits;
}

/// A scheduler whose steps "run" at once, every sampled token being 7 more than the last one.
struct House {
  Scheduler scheduler;
  explicit House(const Limits& limits = small_limits()) : scheduler(limits, {1, 2, 3, 4}) {}

  SequenceId submit(int prompt, int completion, int from = 0, int priority = 0) {
    std::vector<Token> tokens(static_cast<std::size_t>(prompt));
    std::iota(tokens.begin(), tokens.end(), from);
    SequenceRequest request;
    request.prompt = tokens;
    request.completion_max = completion;
    request.priority = priority;
    Result<SequenceId> id = scheduler.submit(request);
    EXPECT_TRUE(id.ok());
    return *id;
  }
  /// Applies the oldest step; ends sequences at their full length.
  void land() {
    const StepBatch& batch = scheduler.oldest_in_flight();
    for (const StepRow& row : batch.rows) {
      const Sequence* sequence = scheduler.apply(row, row.start + 7);
      if (sequence != nullptr && sequence->known() == sequence->length_max)
        scheduler.finish(sequence->id);
    }
    scheduler.retire();
  }
  const StepBatch* step() {
    const StepBatch* batch = scheduler.plan();
    if (batch != nullptr) land();
    return batch;
  }
  void drain() {
    int steps = 0;
    while (step() != nullptr) ASSERT_LT(++steps, 10000);
    EXPECT_EQ(scheduler.live(), 0);
    EXPECT_EQ(scheduler.pool().owned(), 0);
  }
};

TEST(Scheduler, PrefillsInChunksOfTheBudget) {
  House house;
  house.submit(40, 2);
  EXPECT_EQ(house.step()->tokens, 16);
  EXPECT_EQ(house.step()->tokens, 16);
  const StepBatch* last = house.step();
  EXPECT_EQ(last->tokens, 8);
  EXPECT_TRUE(last->rows[0].samples);
  house.drain();
}

TEST(Scheduler, BoundsPrefillBesideDecodes) {
  House house;
  house.submit(4, 20);
  house.step();
  house.submit(40, 2, 100);
  const StepBatch* mixed = house.step();
  EXPECT_EQ(mixed->decodes, 1);
  EXPECT_EQ(mixed->tokens, 1 + 4);
  house.drain();
}

TEST(Scheduler, AdmitsByPriorityAndThenByArrival) {
  Limits limits = small_limits();
  limits.sequences_max = 1;
  House house(limits);
  const SequenceId low = house.submit(2, 1, 0, 5);
  const SequenceId first = house.submit(2, 1, 10, 2);
  const SequenceId second = house.submit(2, 1, 20, 2);
  EXPECT_EQ(house.step()->rows[0].sequence, first);
  EXPECT_EQ(house.step()->rows[0].sequence, second);
  EXPECT_EQ(house.step()->rows[0].sequence, low);
}

TEST(Scheduler, AShortRequestOfBetterPriorityNeedNotWaitForALongPrompt) {
  House house;
  const SequenceId slow = house.submit(60, 2, 0, 7);
  house.step();
  const SequenceId equal = house.submit(4, 1, 200, 7);
  const SequenceId better = house.submit(5, 1, 100, 3);
  const StepBatch* batch = house.step();
  ASSERT_EQ(batch->rows.size(), 2U);
  EXPECT_EQ(batch->rows[0].sequence, better);
  EXPECT_TRUE(batch->rows[0].samples);
  EXPECT_EQ(batch->rows[1].sequence, slow);
  EXPECT_EQ(batch->rows[1].count, 16 - 5);
  // Among equals the first come.
  EXPECT_EQ(house.step()->rows[0].sequence, slow);
  EXPECT_EQ(house.scheduler.find(equal)->state, SequenceState::waiting);
  house.drain();
}

TEST(Scheduler, PrefillThatHasWaitedLongPrecedesBetterNewcomers) {
  Limits limits = small_limits();
  limits.aging_steps = 2;
  House house(limits);
  const SequenceId low = house.submit(60, 2, 0, 1);
  house.step();
  house.step();
  const SequenceId high = house.submit(5, 1, 100, 0);  // as low's rank, and later
  EXPECT_EQ(house.step()->rows[0].sequence, low);
  EXPECT_EQ(house.scheduler.find(high)->state, SequenceState::waiting);
  house.drain();
}

TEST(Scheduler, AnOldLowPriorityOvertakesNewcomers) {
  Limits limits = small_limits();
  limits.sequences_max = 1;
  House house(limits);
  const SequenceId low = house.submit(2, 1, 0, 1);
  int steps = 0;
  for (;; ++steps) {
    ASSERT_LE(steps, limits.aging_steps + 1);
    house.submit(2, 1, 10, 0);
    if (house.step()->rows[0].sequence == low) break;
  }
  EXPECT_GE(steps, limits.aging_steps - 1);
}

TEST(Scheduler, ReusesThePagesOfACommonPrompt) {
  House house;
  house.submit(13, 1);
  house.drain();
  const SequenceId again = house.submit(13, 4);
  const StepBatch* batch = house.scheduler.plan();
  EXPECT_EQ(batch->rows[0].start, 12);
  EXPECT_EQ(house.scheduler.find(again)->cached_tokens, 12);
  house.land();
  house.drain();
}

TEST(Scheduler, CachesWhatWasGeneratedToo) {
  House house;
  house.submit(4, 9);
  house.drain();
  EXPECT_EQ(house.scheduler.prefix_cache().size(), 3);
}

TEST(Scheduler, AdoptsThePageThatIsCachedAlready) {
  House house;
  house.submit(8, 4);
  house.submit(8, 4);  // admitted in the same step: computes the same pages
  house.step();
  EXPECT_EQ(house.scheduler.counters().adopted_pages, 2U);
  EXPECT_EQ(house.scheduler.pool().owned(), 2);
  const StepBatch* next = house.scheduler.plan();
  int adopted = 0;
  for (const PageRun& run : next->runs)
    if (run.seat == next->rows[1].seat && run.first < 2) ++adopted;
  EXPECT_EQ(adopted, 2);  // and the device is told
  house.land();
  house.drain();
}

TEST(Scheduler, ForksAfterThePromptWithOneCopiedPage) {
  for (const bool cached : {true, false}) {
    Limits limits = small_limits();
    limits.prefix_cache = cached;
    House house(limits);
    const SequenceId parent = house.submit(11, 6);
    std::vector<Token> prompt = house.scheduler.find(parent)->tokens;
    SequenceRequest request;
    request.prompt = prompt;
    request.completion_max = 6;
    request.fork_of = parent;
    const SequenceId fork = *house.scheduler.submit(request);
    EXPECT_EQ(house.scheduler.find(fork)->state, SequenceState::held);
    house.step();
    EXPECT_EQ(house.scheduler.find(fork)->state, SequenceState::waiting);
    const StepBatch* batch = house.scheduler.plan();
    ASSERT_EQ(batch->copies.size(), 1U);
    const Sequence& child = *house.scheduler.find(fork);
    const Sequence& origin = *house.scheduler.find(parent);
    EXPECT_EQ(child.pages[0], origin.pages[0]);
    EXPECT_EQ(child.pages[1], origin.pages[1]);
    EXPECT_EQ(batch->copies[0].from, origin.pages[2].page);
    EXPECT_EQ(batch->copies[0].to, child.pages[2].page);
    EXPECT_EQ(batch->rows[1].start, 10);
    EXPECT_EQ(batch->rows[1].count, 1);
    EXPECT_TRUE(batch->rows[1].samples);
    house.land();
    house.drain();
  }
}

TEST(Scheduler, PreemptsTheYoungestAndResumesItWithTheSameTokens) {
  Limits limits = small_limits();
  limits.pages = 8;
  limits.context_max = 32;
  limits.prefix_cache = false;
  House house(limits);
  const SequenceId old = house.submit(4, 20);
  const SequenceId young = house.submit(4, 20, 50);
  bool preempted = false;
  std::vector<Token> before;
  for (int i = 0; i < 40 && !preempted; ++i) {
    before = house.scheduler.find(young)->tokens;
    house.step();
    preempted = house.scheduler.find(young)->state == SequenceState::waiting;
  }
  ASSERT_TRUE(preempted);
  EXPECT_EQ(house.scheduler.find(old)->state, SequenceState::running);
  EXPECT_EQ(house.scheduler.find(young)->tokens, before);
  EXPECT_EQ(house.scheduler.find(young)->pages.size(), 0U);
  house.drain();
  EXPECT_EQ(house.scheduler.counters().resumed, 1U);
}

TEST(Scheduler, RunsAsManyAsThePoolIsSizedFor) {
  struct Shape {
    std::int32_t sequences, context, prompt;
  };
  for (const Shape shape : {Shape{8, 16, 4}, Shape{16, 32, 18}, Shape{8, 128, 114}}) {
    Limits limits = small_limits();
    limits.tokens_per_page = 16;
    limits.sequences_max = shape.sequences;
    limits.context_max = shape.context;
    limits.pages = shape.sequences * limits.pages_of(shape.context);
    limits.step_tokens_max = 1024;
    limits.mixed_prefill_tokens_max = 1000;
    House house(limits);
    for (std::int32_t i = 0; i < shape.sequences; ++i)
      house.submit(shape.prompt, shape.context - shape.prompt, 100 * i);
    // A step changes only so many page-table entries.
    for (int steps = 0; steps < 5; ++steps) house.step();
    EXPECT_EQ(house.scheduler.running().size(), static_cast<std::size_t>(shape.sequences));
    house.drain();
    EXPECT_EQ(house.scheduler.counters().preempted, 0U);
  }
}

TEST(Scheduler, LeavesAPageToEachThatWillOutgrowItsPages) {
  for (const bool grows : {true, false}) {
    Limits limits = small_limits();
    limits.pages = 16;
    limits.step_tokens_max = 64;
    limits.mixed_prefill_tokens_max = 60;
    House house(limits);
    house.submit(50, grows ? 8 : 2);  // in 13 pages
    house.step();
    const SequenceId next = house.submit(12, 1, 100);  // in the other three
    house.step();
    EXPECT_EQ(house.scheduler.find(next) != nullptr, grows);
    house.drain();
  }
}

TEST(Scheduler, ALoneMaximalSequenceUsesEveryPage) {
  Limits limits = small_limits();
  limits.pages = 16;
  House house(limits);
  house.submit(3, 61);
  house.drain();
}

TEST(Scheduler, PlansOneStepAheadAndDiscardsTheLateRow) {
  House house;
  const SequenceId id = house.submit(4, 20);
  house.scheduler.plan();
  const StepBatch* ahead = house.scheduler.plan();
  ASSERT_NE(ahead, nullptr);
  EXPECT_TRUE(ahead->rows[0].takes_last);
  EXPECT_EQ(ahead->rows[0].start, 4);
  // The first result ends it (a stop token, say): the second step's row is discarded.
  const StepRow first = house.scheduler.oldest_in_flight().rows[0];
  EXPECT_NE(house.scheduler.apply(first, 1), nullptr);
  house.scheduler.finish(id);
  house.scheduler.retire();
  EXPECT_EQ(house.scheduler.pool().owned(), 0);
  EXPECT_EQ(house.scheduler.apply(house.scheduler.oldest_in_flight().rows[0], 1), nullptr);
  house.scheduler.retire();
}

TEST(Scheduler, NeverSamplesBeyondTheLengthInFlight) {
  House house;
  house.submit(4, 2);
  EXPECT_NE(house.scheduler.plan(), nullptr);
  EXPECT_NE(house.scheduler.plan(), nullptr);
  house.land();
  EXPECT_EQ(house.scheduler.plan(), nullptr);
  house.land();
  EXPECT_EQ(house.scheduler.live(), 0);
}

TEST(Scheduler, AFinishedSequenceReturnsItsPagesAtOnce) {
  House house;
  const SequenceId id = house.submit(40, 2);
  house.scheduler.plan();
  house.scheduler.finish(id);
  EXPECT_EQ(house.scheduler.pool().owned(), 0);
  house.land();
  EXPECT_EQ(house.scheduler.find(id), nullptr);
}

TEST(Scheduler, APausedSequenceGivesWay) {
  Limits limits = small_limits();
  limits.sequences_max = 1;
  House house(limits);
  const SequenceId slow = house.submit(4, 20);
  house.step();
  house.scheduler.set_paused(slow, true);
  EXPECT_EQ(house.step(), nullptr);
  const SequenceId other = house.submit(4, 1, 50);
  EXPECT_EQ(house.step()->rows[0].sequence, other);
  EXPECT_EQ(house.scheduler.find(slow)->state, SequenceState::held);
  house.scheduler.set_paused(slow, false);
  house.drain();
}

TEST(Scheduler, ALostDeviceCostsNoSequence) {
  House house;
  const SequenceId id = house.submit(6, 8);
  house.step();
  house.step();
  house.scheduler.plan();
  const std::vector<Token> tokens = house.scheduler.find(id)->tokens;
  house.scheduler.reset_device();
  EXPECT_EQ(house.scheduler.steps_in_flight(), 0);
  EXPECT_EQ(house.scheduler.pool().free(), house.scheduler.pool().total());
  EXPECT_EQ(house.scheduler.find(id)->tokens, tokens);
  const StepBatch* again = house.step();
  EXPECT_EQ(again->rows[0].start, 0);
  EXPECT_EQ(again->rows[0].count, 8);
  house.drain();
}

TEST(Scheduler, RefusesWhatCouldNeverRun) {
  Limits limits = small_limits();
  limits.pages = 8;
  Scheduler scheduler(limits, {});
  const std::vector<Token> prompt(40, 1);
  SequenceRequest request;
  EXPECT_EQ(scheduler.submit(request).error().code, ErrorCode::invalid_argument);
  request.prompt = prompt;
  request.completion_max = 25;  // beyond the context
  EXPECT_EQ(scheduler.submit(request).error().code, ErrorCode::invalid_argument);
  request.completion_max = 1;  // 41 tokens need 11 pages
  EXPECT_EQ(scheduler.submit(request).error().code, ErrorCode::invalid_argument);
  request.prompt = std::span(prompt).first(4);
  for (int i = 0; i < limits.live_max; ++i) EXPECT_TRUE(scheduler.submit(request).ok());
  EXPECT_EQ(scheduler.submit(request).error().code, ErrorCode::resource_exhausted);
}

Limits partitioned_limits() {
  Limits limits = small_limits();
  limits.partitions = 4;  // of 8 pages
  limits.context_max = 32;
  limits.step_tokens_max = 64;
  limits.mixed_prefill_tokens_max = 32;
  return limits;
}

TEST(Scheduler, SpreadsSequencesOverPartitions) {
  House house(partitioned_limits());
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(house.submit(8, 8, 100 * i));
  house.step();
  std::vector<std::int32_t> partitions;
  for (const SequenceId id : ids) {
    const Sequence& sequence = *house.scheduler.find(id);
    partitions.push_back(sequence.partition);
    for (const PageHandle page : sequence.pages)
      EXPECT_EQ(page.page / 8, sequence.partition) << "a page of another rank";
  }
  EXPECT_EQ(partitions, (std::vector<std::int32_t>{0, 1, 2, 3}));
  house.drain();
}

TEST(Scheduler, GoesWhereItsPrefixIsUnlessThatIsCrowded) {
  House house(partitioned_limits());
  const SequenceId first = house.submit(9, 1);
  house.step();  // leaves two pages in the cache of partition 0
  EXPECT_EQ(house.scheduler.find(first), nullptr);
  const SequenceId other = house.submit(4, 20, 500);
  const SequenceId again = house.submit(9, 20);
  house.step();
  // Nothing runs: the lowest partition. Then one page in use less two found weighs less than none.
  EXPECT_EQ(house.scheduler.find(other)->partition, 0);
  EXPECT_EQ(house.scheduler.find(again)->partition, 0);
  EXPECT_EQ(house.scheduler.find(again)->cached_tokens, 8);
  const SequenceId crowded = house.submit(9, 20);
  house.step();
  EXPECT_EQ(house.scheduler.find(crowded)->partition, 1);
  EXPECT_EQ(house.scheduler.find(crowded)->cached_tokens, 0);
  house.drain();
}

TEST(Scheduler, GivesEachPartitionItsShareOfThePrefill) {
  House house(partitioned_limits());
  house.submit(20, 2);
  house.submit(20, 2, 200);
  const StepBatch* batch = house.step();
  ASSERT_EQ(batch->rows.size(), 2U);
  EXPECT_EQ(batch->rows[0].count, 16);
  EXPECT_EQ(batch->rows[1].count, 16);
  house.drain();
}

TEST(Scheduler, PreemptsWithinThePartitionThatIsFull) {
  Limits limits = partitioned_limits();
  limits.partitions = 2;
  limits.pages = 16;
  limits.prefix_cache = false;
  House house(limits);
  // Two a partition, each growing to its eight pages.
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(house.submit(12, 20, 100 * i));
  house.step();
  EXPECT_EQ(house.scheduler.running().size(), 4U);
  while (house.scheduler.counters().preempted == 0) ASSERT_NE(house.step(), nullptr);
  EXPECT_EQ(house.scheduler.find(ids[0])->state, SequenceState::running);
  EXPECT_EQ(house.scheduler.find(ids[1])->state, SequenceState::running);
  house.drain();
}

TEST(Scheduler, RefusesWhatNoPartitionCanHold) {
  Limits limits = partitioned_limits();
  limits.context_max = 64;
  Scheduler scheduler(limits, {});
  const std::vector<Token> prompt(40, 1);  // 10 pages
  SequenceRequest request;
  request.prompt = prompt;
  EXPECT_EQ(scheduler.submit(request).error().code, ErrorCode::invalid_argument);
  limits.pages = 30;
  EXPECT_EQ(validate(limits).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace koho
