// SPDX-License-Identifier: Apache-2.0
#include "plan/step_plan.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <random>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "sampling/output_record.h"

namespace koho {
namespace {

constexpr PlanBounds kBounds{.tokens_max = 16,
                             .sequences_max = 4,
                             .pages = 10,
                             .tokens_per_page = 4,
                             .context_max = 24,
                             .vocabulary = 100,
                             .runs_max = 12,
                             .run_pages_max = 14,
                             .biases_max = 8};

/// A decode that takes its token from the device, and a prefill chunk that samples.
struct Example {
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(256);
  std::size_t bytes = 0;
  PlanWriter plan;

  Example() {
    const PlanCounts counts{.tokens = 4,
                            .sequences = 2,
                            .decodes = 1,
                            .samples = 2,
                            .runs = 1,
                            .run_pages = 2,
                            .copies = 1,
                            .biases = 1,
                            .histories = 1,
                            .history_tokens = 3,
                            .stops = 2,
                            .stop_words = 9,
                            .logits_wanted = 1};
    bytes = plan_bytes(counts);
    plan = *begin_plan(7, counts, false, std::as_writable_bytes(std::span(memory)));
    fill(plan.token_ids, {take_last_sampled(2), 11, 12, 13});
    fill(plan.positions, {9, 4, 5, 6});
    fill(plan.slots, {13, 20, 21, 22});
    fill(plan.query_starts, {0, 1, 4});
    fill(plan.context_lengths, {10, 7});
    fill(plan.batch_slots, {2, 0});
    fill(plan.logit_rows, {0, 3});
    fill(plan.sample_batch_slots, {2, 0});
    plan.sampling[0] = {};
    plan.sampling[1] = {};
    plan.sampling[1].bias_count = 1;
    fill(plan.logits_wanted, {1});
    plan.biases[0] = {5, 1.0F};
    plan.runs[0] = {0, 0, 2};
    fill(plan.run_pages, {3, 5});
    plan.copies[0] = {4, 5};
    plan.histories[0] = {0, 2, 1};
    fill(plan.history_tokens, {1, 2, 3});
    plan.stops[0] = {.batch_slot = 0, .output = 2, .output_min = 5, .words = 5};
    plan.stops[1] = {.batch_slot = 2, .output = 0, .output_min = 0, .words = 2};
    fill(plan.stop_words, {71, 72, 1, 99, 2, 8, 9, 1, 33});
  }
  template <typename T>
  static void fill(std::span<T> array, std::initializer_list<std::type_identity_t<T>> values) {
    ASSERT_EQ(array.size(), values.size());
    std::ranges::copy(values, array.begin());
  }
  Result<StepPlan> read() const {
    return read_plan(std::as_bytes(std::span(memory)).first(bytes), kBounds);
  }
};

TEST(StepPlan, ReadsWhatWasWritten) {
  const Example example;
  const Result<StepPlan> plan = example.read();
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->step, 7);
  EXPECT_EQ(plan->decodes, 1);
  EXPECT_TRUE(std::ranges::equal(plan->token_ids, example.plan.token_ids));
  EXPECT_TRUE(std::ranges::equal(plan->slots, example.plan.slots));
  EXPECT_EQ(plan->copies[0].to, 5);
  EXPECT_EQ(plan->logits_wanted[0], 1);
  EXPECT_EQ(plan->history_tokens.size(), 3U);
}

TEST(StepPlan, StopsBecomeWordsOfTheirBatchSlotsOutputs) {
  const Example example;
  std::vector<std::int32_t> batch_slot(OutputRecord::kWords, -7);
  std::vector<std::int32_t> other(OutputRecord::kWords, -7);
  list_output_record_updates(
      *example.read(), [&](std::int32_t of, std::int32_t word, std::int32_t value) {
        ASSERT_TRUE(of == 0 || of == 2);
        (of == 0 ? batch_slot : other).at(static_cast<std::size_t>(word)) = value;
      });
  const std::vector<std::int32_t> stops(batch_slot.begin() + OutputRecord::kStops,
                                        batch_slot.begin() + OutputRecord::kStops + 7);
  EXPECT_EQ(stops, (std::vector<std::int32_t>{1, 99, 2, 8, 9, 0, -7}));
  EXPECT_EQ(batch_slot[OutputRecord::kOutput], 2);
  // 8 then 9 ends nothing before the sixth token, 99 does at once.
  EXPECT_EQ(take_token(batch_slot.data(), 8), RowEnd::none);
  EXPECT_EQ(take_token(batch_slot.data(), 9), RowEnd::none);
  std::vector<std::int32_t> sooner = batch_slot;
  EXPECT_EQ(take_token(sooner.data(), 99), RowEnd::ended);
  EXPECT_EQ(sooner[OutputRecord::kEnded], 1);
  EXPECT_EQ(take_token(sooner.data(), 8), RowEnd::frozen);
  EXPECT_EQ(take_token(batch_slot.data(), 8), RowEnd::none);
  EXPECT_EQ(take_token(batch_slot.data(), 9), RowEnd::ended);
  EXPECT_EQ(take_token(other.data(), 33), RowEnd::ended);
}

TEST(StepPlan, AStopMayReachBackOverTheTokensThatASequenceCameWith) {
  Example example;
  example.plan.stops[0].output_min = 0;
  Example::fill(example.plan.stop_words, {71, 72, 4, 71, 72, 3, 4, 1, 33});
  std::vector<std::int32_t> batch_slot(OutputRecord::kWords);
  list_output_record_updates(*example.read(),
                             [&](std::int32_t of, std::int32_t word, std::int32_t value) {
                               if (of == 0) batch_slot.at(static_cast<std::size_t>(word)) = value;
                             });
  EXPECT_EQ(take_token(batch_slot.data(), 3), RowEnd::none);
  EXPECT_EQ(take_token(batch_slot.data(), 4), RowEnd::ended);
}

TEST(StepPlan, RefusesEveryWrongNumberByName) {
  const auto expect_error = [](const char* name, auto&& change) {
    Example example;
    change(example.plan);
    const Result<StepPlan> plan = example.read();
    ASSERT_FALSE(plan.ok()) << name;
    EXPECT_NE(plan.error().message.find(name), std::string::npos) << plan.error().message;
  };
  expect_error("token_ids[1]", [](PlanWriter& plan) { plan.token_ids[1] = 100; });
  expect_error("token_ids[1]", [](PlanWriter& plan) { plan.token_ids[1] = take_last_sampled(0); });
  expect_error("token_ids[0]", [](PlanWriter& plan) { plan.token_ids[0] = take_last_sampled(1); });
  expect_error("positions[2]", [](PlanWriter& plan) { plan.positions[2] = 6; });
  expect_error("slots[0]", [](PlanWriter& plan) { plan.slots[0] = 40; });
  expect_error("slots[1]", [](PlanWriter& plan) { plan.slots[1] = 21; });
  expect_error("query_starts[0]", [](PlanWriter& plan) { plan.query_starts[0] = 1; });
  expect_error("query_starts[1]", [](PlanWriter& plan) { plan.query_starts[1] = 2; });
  expect_error("query_starts[2]", [](PlanWriter& plan) { plan.query_starts[2] = 5; });
  expect_error("context_lengths[1]", [](PlanWriter& plan) { plan.context_lengths[1] = 2; });
  expect_error("batch_slots[1]", [](PlanWriter& plan) { plan.batch_slots[1] = 4; });
  expect_error("logit_rows[1]", [](PlanWriter& plan) { plan.logit_rows[1] = 2; });
  expect_error("logit_rows[1]", [](PlanWriter& plan) { plan.logit_rows[1] = 0; });
  expect_error("logits_wanted[0]", [](PlanWriter& plan) { plan.logits_wanted[0] = 2; });
  expect_error("logits_wanted[0]", [](PlanWriter& plan) { plan.logits_wanted[0] = -1; });
  expect_error("sample_batch_slots[0]", [](PlanWriter& plan) { plan.sample_batch_slots[0] = 1; });
  expect_error("counts_slot[0]", [](PlanWriter& plan) { plan.sampling[0].counts_slot = 4; });
  expect_error("logprobs[1]", [](PlanWriter& plan) { plan.sampling[1].logprobs = 21; });
  expect_error("bias_begin[0]", [](PlanWriter& plan) { plan.sampling[0].bias_begin = 2; });
  expect_error("bias_count[1]", [](PlanWriter& plan) { plan.sampling[1].bias_count = 2; });
  expect_error("biases.token[0]", [](PlanWriter& plan) { plan.biases[0].token = -1; });
  expect_error("runs.batch_slot[0]", [](PlanWriter& plan) { plan.runs[0].batch_slot = -1; });
  expect_error("runs.first[0]", [](PlanWriter& plan) { plan.runs[0].first = 7; });
  expect_error("runs.count[0]", [](PlanWriter& plan) { plan.runs[0].count = 7; });
  expect_error("runs.count[1]", [](PlanWriter& plan) { plan.runs[0].count = 1; });
  expect_error("run_pages[1]", [](PlanWriter& plan) { plan.run_pages[1] = 10; });
  expect_error("copies.from[0]", [](PlanWriter& plan) { plan.copies[0].from = -1; });
  expect_error("copies.to[0]", [](PlanWriter& plan) { plan.copies[0].to = 4; });
  expect_error("histories.batch_slot[0]",
               [](PlanWriter& plan) { plan.histories[0].batch_slot = 9; });
  expect_error("histories.prompt[1]", [](PlanWriter& plan) { plan.histories[0].prompt = 1; });
  expect_error("stops.batch_slot[1]", [](PlanWriter& plan) { plan.stops[1].batch_slot = 4; });
  expect_error("stops.batch_slot[1]", [](PlanWriter& plan) { plan.stops[1].batch_slot = 0; });
  expect_error("stops.output[0]", [](PlanWriter& plan) { plan.stops[0].output = -1; });
  expect_error("stops.output_min[0]", [](PlanWriter& plan) { plan.stops[0].output_min = -1; });
  expect_error("stops.words[1]", [](PlanWriter& plan) { plan.stops[1].words = 1000; });
  expect_error("stop_words[1]", [](PlanWriter& plan) { plan.stops[1].words = 3; });
  expect_error("stop_words[2]", [](PlanWriter& plan) { plan.stops[1].words = 0; });
  expect_error("stop_words[0]", [](PlanWriter& plan) { plan.stop_words[1] = 100; });
  expect_error("stop_words[0]", [](PlanWriter& plan) { plan.stop_words[2] = 17; });
  expect_error("stop_words[0]", [](PlanWriter& plan) { plan.stop_words[4] = 3; });
  expect_error("stop_words[1]", [](PlanWriter& plan) { plan.stop_words[8] = -1; });
  expect_error("history_tokens[0]", [](PlanWriter& plan) { plan.history_tokens[0] = -1; });
}

TEST(StepPlan, RefusesSpaceThatIsTooSmall) {
  std::vector<std::uint64_t> memory(10);
  const Result<PlanWriter> plan = begin_plan(1, {.tokens = 4, .sequences = 1}, false,
                                             std::as_writable_bytes(std::span(memory)));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::resource_exhausted);
}

TEST(StepPlan, SurvivesAnyBytes) {
  std::mt19937_64 random(5);
  int accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    Example example;
    const std::size_t changes = 1 + random() % 3;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::span<std::byte> bytes = std::as_writable_bytes(std::span(example.memory));
      // Headers twice as often: they decide all lengths.
      const std::size_t range = random() % 2 == 0 ? sizeof(PlanHeader) : example.bytes;
      bytes[random() % range] = static_cast<std::byte>(random());
    }
    if (random() % 8 == 0) example.bytes = random() % (example.memory.size() * 8);
    const Result<StepPlan> plan = example.read();
    if (!plan.ok()) continue;
    ++accepted;
    for (const std::int64_t slot : plan->slots) ASSERT_LT(slot, 40);
  }
  EXPECT_GT(accepted, 0);  // a temperature may be anything
}

}  // namespace
}  // namespace koho
