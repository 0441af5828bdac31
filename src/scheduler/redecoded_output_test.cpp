// SPDX-License-Identifier: Apache-2.0
// Limits::redecodes_output: output that is computed again. What holds over all histories:
// tests/simulation.
#include <iterator>
#include <vector>

#include "tests/support/scheduler_harness.h"

namespace koho {
namespace {

TEST(OutputDecodedAgain, IsNoPrefillWhereThatTells) {
  Limits limits = small_limits();
  limits.redecodes_output = true;
  Harness harness(limits);
  const SequenceId id = harness.submit(17, 20);
  EXPECT_EQ(harness.step()->tokens, 16);
  const StepBatch* batch = harness.step();
  EXPECT_EQ(batch->rows[0].count, 1);
  EXPECT_EQ(batch->decodes, 0) << "the last token of a prompt, alone in its chunk";
  for (int i = 0; i < 7; ++i) EXPECT_EQ(harness.step()->decodes, 1);
  harness.scheduler.reset_device();
  EXPECT_EQ(harness.step()->tokens, 16);
  batch = harness.step();
  EXPECT_EQ(batch->tokens, 1) << "no chunk holds both kinds of tokens";
  EXPECT_EQ(batch->decodes, 0);
  for (int start = 17; start < 25; start += 4) {
    batch = harness.step();
    ASSERT_EQ(batch->rows.size(), 4U) << "as many rows as the step has";
    EXPECT_EQ(batch->decodes, 4);
    EXPECT_EQ(batch->redecoded, 4);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(batch->rows[static_cast<std::size_t>(i)].start, start + i);
      EXPECT_EQ(batch->rows[static_cast<std::size_t>(i)].samples, start + i == 24);
    }
  }
  const std::vector<Token> tokens = harness.scheduler.find(id)->tokens;
  harness.drain();
  // Five of its pages are full of prompt and output, four of them of the prompt.
  SequenceRequest turn;
  turn.prompt = tokens;
  turn.completion_max = 1;
  const SequenceId next = *harness.scheduler.submit(turn);
  EXPECT_EQ(harness.scheduler.plan()->rows[0].start, 16);
  EXPECT_EQ(harness.scheduler.find(next)->cached_tokens, 16);
  harness.collect();
  harness.drain();
}

/// Rows are shared out before tokens are: everyone has one, and nobody is granted what has none.
TEST(OutputDecodedAgain, HasARowForEachSequence) {
  Limits limits = small_limits();
  limits.redecodes_output = true;
  limits.pages = 64;
  Harness harness(limits);
  for (int i = 0; i < 3; ++i) harness.submit(4, 20, 100 * i);
  for (int i = 0; i < 12; ++i) harness.step();
  harness.scheduler.reset_device();
  while (harness.scheduler.counters().resumed < 3) harness.step();
  const StepBatch* batch = nullptr;
  do {
    batch = harness.step();
  } while (batch->redecoded == 0 || batch->decodes != std::ssize(batch->rows));
  EXPECT_EQ(batch->rows.size(), 4U) << "all rows of the step";
  EXPECT_EQ(batch->prefill_cost, batch->redecoded);
  for (const std::int32_t index : harness.scheduler.running()) {
    const Sequence& sequence = harness.scheduler.sequences()[static_cast<std::size_t>(index)];
    EXPECT_GT(tokens_of(batch, sequence.id), 0);
  }
  harness.drain();
}

}  // namespace
}  // namespace koho
