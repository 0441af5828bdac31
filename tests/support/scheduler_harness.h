// SPDX-License-Identifier: Apache-2.0
// For tests: a scheduler of a few pages whose steps are done at once.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/scheduler.h"

namespace koho {

inline Limits small_limits() {
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
struct Harness {
  Scheduler scheduler;
  explicit Harness(const Limits& limits = small_limits()) : scheduler(limits, {1, 2, 3, 4}) {}

  SequenceId submit(
      int prompt, int completion, int from = 0, int priority = 0, std::uint64_t client = 0) {
    std::vector<Token> tokens(static_cast<std::size_t>(prompt));
    std::iota(tokens.begin(), tokens.end(), from);
    SequenceRequest request;
    request.prompt = tokens;
    request.completion_max = completion;
    request.priority = priority;
    request.client = client;
    Result<SequenceId> id = scheduler.submit(request);
    EXPECT_TRUE(id.ok());
    return *id;
  }
  /// Applies the oldest step; ends sequences at their full length.
  void collect() {
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
    if (batch != nullptr) collect();
    return batch;
  }
  /// Steps until all of `longs` have ended, `steps_max` at most, while `others` more are always
  /// there; `submit_other` submits the next of these.
  int steps_beside_others(const std::vector<SequenceId>& longs,
                          std::size_t others,
                          const std::function<SequenceId(int)>& submit_other,
                          int steps_max) {
    const auto lives = [this](SequenceId id) { return scheduler.find(id) != nullptr; };
    std::vector<SequenceId> ids(others, kNoSequence);
    int steps = 0;
    for (int next = 0; steps < steps_max && std::ranges::any_of(longs, lives); ++steps) {
      for (SequenceId& id : ids)
        if (!lives(id)) id = submit_other(++next);
      step();
    }
    EXPECT_LT(steps, steps_max);
    return steps;
  }
  void drain() {
    int steps = 0;
    while (step() != nullptr) ASSERT_LT(++steps, 10000);
    EXPECT_EQ(scheduler.live(), 0);
    EXPECT_EQ(scheduler.pool().owned(), 0);
  }
};

/// Of the sequence in the step.
inline std::int32_t tokens_of(const StepBatch* batch, SequenceId id) {
  for (const StepRow& row : batch->rows)
    if (row.sequence == id) return row.count;
  return 0;
}

}  // namespace koho
