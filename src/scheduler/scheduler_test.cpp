// SPDX-License-Identifier: Apache-2.0
// The scheduler's decisions one by one. What holds over all histories: tests/simulation.
#include <algorithm>
#include <random>

#include "tests/support/scheduler_harness.h"

namespace koho {
namespace {

TEST(Scheduler, PrefillsInChunksOfTheBudget) {
  Harness harness;
  harness.submit(40, 2);
  EXPECT_EQ(harness.step()->tokens, 16);
  EXPECT_EQ(harness.step()->tokens, 16);
  const StepBatch* last = harness.step();
  EXPECT_EQ(last->tokens, 8);
  EXPECT_TRUE(last->rows[0].samples);
  harness.drain();
}

/// A step pays for 100 tokens of prefill; a token at position 100 costs two.
Limits limits_that_count_attention() {
  Limits limits = small_limits();
  limits.pages = 1000;
  limits.context_max = 2000;
  limits.step_tokens_max = 200;
  limits.attention_tokens = 100;
  limits.prefill_tokens_max = 100;
  limits.mixed_prefill_tokens_max = 100;
  return limits;
}

/// Issue 30: a chunk of 512 tokens behind 100,000 took five seconds on a CPU, and short requests
/// beside it waited for each.
TEST(Scheduler, ChunksDeepInAPromptAreShorter) {
  Harness harness(limits_that_count_attention());
  harness.submit(4, 1900, 5000);  // decodes a token a step
  harness.step();
  harness.submit(1900, 1);
  int position = 0;
  while (position < 1900) {
    const StepBatch* batch = harness.step();
    const int tokens = batch->tokens - 1;
    // A token at this position costs 1 + position / 100, and a step pays for 100: a quarter by
    // turn, the rest to the shortest. Each part has at least 16 tokens.
    const int fair = 10000 / (100 + position);
    EXPECT_GE(batch->prefill_cost, position + tokens < 1900 ? 80 : tokens) << position;
    EXPECT_LE(batch->prefill_cost, 100) << position;
    EXPECT_LE(tokens, fair + 2 * 16) << position;
    EXPECT_GE(tokens, std::min(std::max(fair / 2, 16), 1900 - position)) << position;
    position += tokens;
    // Who comes meanwhile has the next step.
    if (position > 1000 && position < 1100) {
      const SequenceId brief = harness.submit(4, 1, position);
      const StepBatch* next = harness.step();
      EXPECT_TRUE(std::ranges::any_of(next->rows, [&](const auto& row) {
        return row.sequence == brief && row.samples;
      })) << position;
      position += next->tokens - 1 - 4;
    }
  }
  harness.drain();
}

/// Where nobody waits for them, they are as long as everywhere.
TEST(Scheduler, ChunksOfAPromptAloneAreWhole) {
  Harness harness(limits_that_count_attention());
  harness.submit(1900, 1);
  for (int position = 0; position < 1900; position += 100)
    EXPECT_EQ(harness.step()->tokens, 100) << position;
  harness.drain();
}

/// Of whatever budgets, partitions and turns: a step pays for all of its prefill, and all
/// prompts come to their end.
TEST(Scheduler, ChunksThatCountAttentionKeepWithinEveryBudget) {
  std::minstd_rand random(1);
  const auto in = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 300; ++round) {
    Limits limits = small_limits();
    limits.partitions = in(1, 4);
    limits.pages = 120;
    limits.context_max = 120;
    limits.step_tokens_max = limits.sequences_max + in(1, 64);
    limits.mixed_prefill_tokens_max = in(1, limits.step_tokens_max);
    limits.prefill_tokens_max = in(0, limits.step_tokens_max);
    limits.attention_tokens = in(1, 40);
    limits.turn_percent = in(1, 100);
    Harness harness(limits);
    for (int i = 0; i < 10; ++i)
      harness.submit(in(1, 90), in(1, 10), 200 * i, in(0, 2), static_cast<std::uint64_t>(in(0, 2)));
    int steps = 0;
    while (const StepBatch* batch = harness.step()) {
      ASSERT_LT(++steps, 2000) << round;
      int most = limits.step_tokens_max - batch->decodes;
      if (limits.prefill_tokens_max > 0) most = std::min(most, limits.prefill_tokens_max);
      if (batch->decodes > 0) most = std::min(most, limits.mixed_prefill_tokens_max);
      ASSERT_LE(batch->tokens - batch->decodes, batch->prefill_cost) << round;
      ASSERT_LE(batch->prefill_cost, most) << round;
    }
    EXPECT_EQ(harness.scheduler.live(), 0);
  }
}

TEST(Scheduler, BoundsPrefillBesideDecodes) {
  Harness harness;
  harness.submit(4, 20);
  harness.step();
  harness.submit(40, 2, 100);
  const StepBatch* mixed = harness.step();
  EXPECT_EQ(mixed->decodes, 1);
  EXPECT_EQ(mixed->tokens, 1 + 4);
  harness.drain();
}

TEST(Scheduler, AdmitsByPriorityAndThenByArrival) {
  Limits limits = small_limits();
  limits.sequences_max = 1;
  Harness harness(limits);
  const SequenceId low = harness.submit(2, 1, 0, 5);
  const SequenceId first = harness.submit(2, 1, 10, 2);
  const SequenceId second = harness.submit(2, 1, 20, 2);
  EXPECT_EQ(harness.step()->rows[0].sequence, first);
  EXPECT_EQ(harness.step()->rows[0].sequence, second);
  EXPECT_EQ(harness.step()->rows[0].sequence, low);
}

TEST(Scheduler, AnOldLowPriorityOvertakesNewcomers) {
  Limits limits = small_limits();
  limits.sequences_max = 1;
  Harness harness(limits);
  const SequenceId low = harness.submit(2, 1, 0, 1);
  int steps = 0;
  for (;; ++steps) {
    ASSERT_LE(steps, limits.aging_steps + 1);
    harness.submit(2, 1, 10, 0);
    if (harness.step()->rows[0].sequence == low) break;
  }
  EXPECT_GE(steps, limits.aging_steps - 1);
}

TEST(Scheduler, ReusesThePagesOfACommonPrompt) {
  Harness harness;
  harness.submit(13, 1);
  harness.drain();
  const SequenceId again = harness.submit(13, 4);
  const StepBatch* batch = harness.scheduler.plan();
  EXPECT_EQ(batch->rows[0].start, 12);
  EXPECT_EQ(harness.scheduler.find(again)->cached_tokens, 12);
  harness.collect();
  harness.drain();
}

TEST(Scheduler, CachesWhatWasGeneratedToo) {
  Harness harness;
  harness.submit(4, 9);
  harness.drain();
  EXPECT_EQ(harness.scheduler.prefix_cache().size(), 3);
}

TEST(Scheduler, DeduplicatesAPageThatIsCachedAlready) {
  Harness harness;
  harness.submit(8, 4);
  harness.submit(8, 4);  // admitted in the same step: computes the same pages
  harness.step();
  EXPECT_EQ(harness.scheduler.counters().deduplicated_pages, 2U);
  EXPECT_EQ(harness.scheduler.pool().owned(), 2);
  const StepBatch* next = harness.scheduler.plan();
  int deduplicated = 0;
  for (const PageRun& run : next->runs)
    if (run.batch_slot == next->rows[1].batch_slot && run.first < 2) ++deduplicated;
  EXPECT_EQ(deduplicated, 2);  // and the device is told
  harness.collect();
  harness.drain();
}

TEST(Scheduler, ForksAfterThePromptWithOneCopiedPage) {
  for (const bool cached : {true, false}) {
    Limits limits = small_limits();
    limits.prefix_cache = cached;
    Harness harness(limits);
    const SequenceId parent = harness.submit(11, 6);
    std::vector<Token> prompt = harness.scheduler.find(parent)->tokens;
    SequenceRequest request;
    request.prompt = prompt;
    request.completion_max = 6;
    request.fork_of = parent;
    const SequenceId fork = *harness.scheduler.submit(request);
    EXPECT_EQ(harness.scheduler.find(fork)->state, SequenceState::held);
    harness.step();
    EXPECT_EQ(harness.scheduler.find(fork)->state, SequenceState::waiting);
    const StepBatch* batch = harness.scheduler.plan();
    ASSERT_EQ(batch->copies.size(), 1U);
    const Sequence& child = *harness.scheduler.find(fork);
    const Sequence& origin = *harness.scheduler.find(parent);
    EXPECT_EQ(child.pages[0], origin.pages[0]);
    EXPECT_EQ(child.pages[1], origin.pages[1]);
    EXPECT_EQ(batch->copies[0].from, origin.pages[2].page);
    EXPECT_EQ(batch->copies[0].to, child.pages[2].page);
    EXPECT_EQ(batch->rows[1].start, 10);
    EXPECT_EQ(batch->rows[1].count, 1);
    EXPECT_TRUE(batch->rows[1].samples);
    harness.collect();
    harness.drain();
  }
}

TEST(Scheduler, PreemptsTheYoungestAndResumesItWithTheSameTokens) {
  Limits limits = small_limits();
  limits.pages = 8;
  limits.context_max = 32;
  limits.prefix_cache = false;
  Harness harness(limits);
  const SequenceId old = harness.submit(4, 20);
  const SequenceId young = harness.submit(4, 20, 50);
  bool preempted = false;
  std::vector<Token> before;
  for (int i = 0; i < 40 && !preempted; ++i) {
    before = harness.scheduler.find(young)->tokens;
    harness.step();
    preempted = harness.scheduler.find(young)->state == SequenceState::waiting;
  }
  ASSERT_TRUE(preempted);
  EXPECT_EQ(harness.scheduler.find(old)->state, SequenceState::running);
  EXPECT_EQ(harness.scheduler.find(young)->tokens, before);
  EXPECT_EQ(harness.scheduler.find(young)->pages.size(), 0U);
  harness.drain();
  EXPECT_EQ(harness.scheduler.counters().resumed, 1U);
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
    Harness harness(limits);
    for (std::int32_t i = 0; i < shape.sequences; ++i)
      harness.submit(shape.prompt, shape.context - shape.prompt, 100 * i);
    // A step changes only so many page-table entries.
    for (int steps = 0; steps < 5; ++steps) harness.step();
    EXPECT_EQ(harness.scheduler.running().size(), static_cast<std::size_t>(shape.sequences));
    harness.drain();
    EXPECT_EQ(harness.scheduler.counters().preempted, 0U);
  }
}

TEST(Scheduler, LeavesAPageToEachThatWillOutgrowItsPages) {
  for (const bool grows : {true, false}) {
    Limits limits = small_limits();
    limits.pages = 16;
    limits.step_tokens_max = 64;
    limits.mixed_prefill_tokens_max = 60;
    Harness harness(limits);
    harness.submit(50, grows ? 8 : 2);  // in 13 pages
    harness.step();
    const SequenceId next = harness.submit(12, 1, 100);  // in the other three
    harness.step();
    EXPECT_EQ(harness.scheduler.find(next) != nullptr, grows);
    harness.drain();
  }
}

TEST(Scheduler, ALoneMaximalSequenceUsesEveryPage) {
  Limits limits = small_limits();
  limits.pages = 16;
  Harness harness(limits);
  harness.submit(3, 61);
  harness.drain();
}

TEST(Scheduler, PlansUnderLookaheadAndDiscardsTheLateRow) {
  Harness harness;
  const SequenceId id = harness.submit(4, 20);
  harness.scheduler.plan();
  const StepBatch* next = harness.scheduler.plan();
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(next->rows[0].takes_last);
  EXPECT_EQ(next->rows[0].start, 4);
  // The first result ends it (a stop token, say): the second step's row is discarded.
  const StepRow first = harness.scheduler.oldest_in_flight().rows[0];
  EXPECT_NE(harness.scheduler.apply(first, 1), nullptr);
  harness.scheduler.finish(id);
  harness.scheduler.retire();
  EXPECT_EQ(harness.scheduler.pool().owned(), 0);
  EXPECT_EQ(harness.scheduler.apply(harness.scheduler.oldest_in_flight().rows[0], 1), nullptr);
  harness.scheduler.retire();
}

TEST(Scheduler, NeverSamplesBeyondTheLengthInFlight) {
  Harness harness;
  harness.submit(4, 2);
  EXPECT_NE(harness.scheduler.plan(), nullptr);
  EXPECT_NE(harness.scheduler.plan(), nullptr);
  harness.collect();
  EXPECT_EQ(harness.scheduler.plan(), nullptr);
  harness.collect();
  EXPECT_EQ(harness.scheduler.live(), 0);
}

TEST(Scheduler, AFinishedSequenceReturnsItsPagesAtOnce) {
  Harness harness;
  const SequenceId id = harness.submit(40, 2);
  harness.scheduler.plan();
  harness.scheduler.finish(id);
  EXPECT_EQ(harness.scheduler.pool().owned(), 0);
  harness.collect();
  EXPECT_EQ(harness.scheduler.find(id), nullptr);
}

TEST(Scheduler, APausedSequenceGivesWay) {
  Limits limits = small_limits();
  limits.sequences_max = 1;
  Harness harness(limits);
  const SequenceId slow = harness.submit(4, 20);
  harness.step();
  harness.scheduler.set_paused(slow, true);
  EXPECT_EQ(harness.step(), nullptr);
  const SequenceId other = harness.submit(4, 1, 50);
  EXPECT_EQ(harness.step()->rows[0].sequence, other);
  EXPECT_EQ(harness.scheduler.find(slow)->state, SequenceState::held);
  harness.scheduler.set_paused(slow, false);
  harness.drain();
}

TEST(Scheduler, ALostDeviceCostsNoSequence) {
  Harness harness;
  const SequenceId id = harness.submit(6, 8);
  harness.step();
  harness.step();
  harness.scheduler.plan();
  const std::vector<Token> tokens = harness.scheduler.find(id)->tokens;
  harness.scheduler.reset_device();
  EXPECT_EQ(harness.scheduler.steps_in_flight(), 0);
  EXPECT_EQ(harness.scheduler.pool().free(), harness.scheduler.pool().total());
  EXPECT_EQ(harness.scheduler.find(id)->tokens, tokens);
  const StepBatch* again = harness.step();
  EXPECT_EQ(again->rows[0].start, 0);
  EXPECT_EQ(again->rows[0].count, 8);
  harness.drain();
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
  Harness harness(partitioned_limits());
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(harness.submit(8, 8, 100 * i));
  harness.step();
  std::vector<std::int32_t> partitions;
  for (const SequenceId id : ids) {
    const Sequence& sequence = *harness.scheduler.find(id);
    partitions.push_back(sequence.partition);
    for (const PageHandle page : sequence.pages)
      EXPECT_EQ(page.page / 8, sequence.partition) << "a page of another rank";
  }
  EXPECT_EQ(partitions, (std::vector<std::int32_t>{0, 1, 2, 3}));
  harness.drain();
}

TEST(Scheduler, GoesWhereItsPrefixIsUnlessThatPartitionIsLoaded) {
  Harness harness(partitioned_limits());
  const SequenceId first = harness.submit(9, 1);
  harness.step();  // leaves two pages in the cache of partition 0
  EXPECT_EQ(harness.scheduler.find(first), nullptr);
  const SequenceId other = harness.submit(4, 20, 500);
  const SequenceId again = harness.submit(9, 20);
  harness.step();
  // Nothing runs: the lowest partition. Then one page in use less two found weighs less than none.
  EXPECT_EQ(harness.scheduler.find(other)->partition, 0);
  EXPECT_EQ(harness.scheduler.find(again)->partition, 0);
  EXPECT_EQ(harness.scheduler.find(again)->cached_tokens, 8);
  const SequenceId elsewhere = harness.submit(9, 20);
  harness.step();
  EXPECT_EQ(harness.scheduler.find(elsewhere)->partition, 1);
  EXPECT_EQ(harness.scheduler.find(elsewhere)->cached_tokens, 0);
  harness.drain();
}

TEST(Scheduler, GivesEachPartitionItsShareOfThePrefill) {
  Harness harness(partitioned_limits());
  harness.submit(20, 2);
  harness.submit(20, 2, 200);
  const StepBatch* batch = harness.step();
  ASSERT_EQ(batch->rows.size(), 2U);
  EXPECT_EQ(batch->rows[0].count, 16);
  EXPECT_EQ(batch->rows[1].count, 16);
  harness.drain();
}

TEST(Scheduler, PreemptsWithinThePartitionThatIsFull) {
  Limits limits = partitioned_limits();
  limits.partitions = 2;
  limits.pages = 16;
  limits.prefix_cache = false;
  Harness harness(limits);
  // Two a partition, each growing to its eight pages.
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(harness.submit(12, 20, 100 * i));
  harness.step();
  EXPECT_EQ(harness.scheduler.running().size(), 4U);
  while (harness.scheduler.counters().preempted == 0) ASSERT_NE(harness.step(), nullptr);
  EXPECT_EQ(harness.scheduler.find(ids[0])->state, SequenceState::running);
  EXPECT_EQ(harness.scheduler.find(ids[1])->state, SequenceState::running);
  harness.drain();
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
