// SPDX-License-Identifier: Apache-2.0
// A worker alone: what a step brings to the device comes with the step's one packed copy.
#include "worker/worker.h"

#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/one_rank.h"
#include "comm/thread_ranks.h"
#include "cpu/cpu_backend.h"
#include "model/synthetic.h"
#include "tests/support/forwarding_backend.h"

namespace koho {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 16;
  config.intermediate_size = 32;
  config.moe_intermediate_size = 16;
  config.n_routed_experts = 4;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 2;
  config.n_group = 1;
  config.topk_group = 1;
  config.first_k_dense_replace = 1;
  config.max_position_embeddings = 256;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e6;
  config.partial_rotary_factor = 0.5;
  config.routed_scaling_factor = 1.0;
  return config;
}

/// Counts the copies that the host waits for.
class WaitCounter final : public testing::ForwardingBackend {
 public:
  WaitCounter(std::unique_ptr<Backend> real, int& waits)
      : ForwardingBackend(std::move(real)), waits_(waits) {}
  Status upload(TensorView destination, std::span<const std::byte> source) override {
    ++waits_;
    return ForwardingBackend::upload(destination, source);
  }
  Status synchronize() override {
    ++waits_;
    return ForwardingBackend::synchronize();
  }

 private:
  int& waits_;
};

struct Fixture {
  HostSyntheticWeights weights;
  Worker worker;
};

/// A worker of two batch slots with room for one page each.
Result<std::unique_ptr<Fixture>> make_worker(
    int& waits,
    const Shard& shard = {},
    std::unique_ptr<Communicator> communicator = std::make_unique<OneRank>()) {
  KOHO_TRY_ASSIGN(HostSyntheticWeights weights, HostSyntheticWeights::make(small_config(), 3));
  KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend, make_cpu_backend({.threads = 1}));
  WorkerSettings settings;
  settings.load.limits = {
      .tokens_max = 8, .sequences_max = 2, .context_max = 64, .logit_rows_max = 2, .vocabulary = 0};
  settings.load.shard = shard;
  settings.load.kv_pages = 2;
  settings.counts_slots = 2;
  settings.tokenizer_tokens = small_config().vocab_size;
  KOHO_TRY_ASSIGN(Worker worker,
                  Worker::create(small_config(), weights.sources(), settings,
                                 std::make_unique<WaitCounter>(std::move(backend), waits),
                                 std::move(communicator)));
  return std::unique_ptr<Fixture>(new Fixture{std::move(weights), std::move(worker)});
}

/// A step of the two batch slots' first token, greedy, with a presence penalty that outweighs every
/// logit; the token counts begin with `resets` and `history`.
Result<std::vector<std::int32_t>> penalized_step(Worker& worker,
                                                 std::span<const CountsReset> resets,
                                                 std::span<const std::int32_t> history) {
  const std::array<std::int32_t, 2> ids{5, 6}, positions{0, 0}, contexts{1, 1}, slots{0, 1},
      rows{0, 1};
  const std::array<std::int64_t, 2> cache{0, kPageTokens};
  const std::array<std::int32_t, 3> starts{0, 1, 2};
  const std::array<std::int32_t, 4> pages{worker.page_table_index(0, 0), 0,
                                          worker.page_table_index(1, 0), 1};
  std::array<SamplingRow, 2> sampling{};
  for (std::size_t row = 0; row < sampling.size(); ++row) {
    sampling[row].counts_slot = static_cast<std::int32_t>(row);
    sampling[row].presence_penalty = 1e6F;
  }
  StepOutput output;
  KOHO_TRY(worker.step({.token_ids = ids,
                        .positions = positions,
                        .slots = cache,
                        .query_starts = starts,
                        .context_lengths = contexts,
                        .batch_slots = slots,
                        .decodes = 2,
                        .logit_rows = rows,
                        .sample_batch_slots = slots,
                        .sampling = sampling,
                        .biases = {},
                        .masks = {},
                        .page_table_updates = pages,
                        .output_record_updates = {},
                        .page_copies = {},
                        .counts_resets = resets,
                        .history_tokens = history},
                       output));
  return output.ids;
}

TEST(Worker, TakesTokenHistoriesWithTheStepAndWithoutWaiting) {
  int waits = 0;
  auto fixture = make_worker(waits);
  ASSERT_TRUE(fixture.ok()) << fixture.error().message;
  Worker& worker = (*fixture)->worker;
  const std::array<CountsReset, 2> none{CountsReset{0, 0, 0}, CountsReset{1, 0, 0}};
  const auto free = penalized_step(worker, none, {});
  ASSERT_TRUE(free.ok()) << free.error().message;
  const std::int64_t sent = worker.last_traffic().sent;

  // Slot 0's output holds the token that it would sample, slot 1's prompt does: the presence
  // penalty is of output tokens only.
  const std::array<CountsReset, 2> resets{CountsReset{0, 1, 2}, CountsReset{1, 1, 0}};
  const std::array<std::int32_t, 4> history{9, 10, (*free)[0], (*free)[1]};
  waits = 0;
  const auto counted = penalized_step(worker, resets, history);
  ASSERT_TRUE(counted.ok()) << counted.error().message;
  EXPECT_EQ(waits, 0);
  EXPECT_EQ(worker.last_traffic().sent, sent + static_cast<std::int64_t>(sizeof(history)));
  EXPECT_NE((*counted)[0], (*free)[0]);
  EXPECT_EQ((*counted)[1], (*free)[1]);
}

TEST(Worker, RefusesALongerHistoryThanItsContext) {
  int waits = 0;
  auto fixture = make_worker(waits);
  ASSERT_TRUE(fixture.ok()) << fixture.error().message;
  const std::array<CountsReset, 1> reset{CountsReset{0, 65, 0}};
  const std::vector<std::int32_t> history(65, 1);
  const auto refused = penalized_step((*fixture)->worker, reset, history);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
}

/// Without them a GPU would send its rows to other places than the others read them from.
TEST(Worker, DataParallelStepsMustNameTheTokensOfEveryRank) {
  int waits = 0;
  std::vector<std::unique_ptr<Communicator>> ranks = make_thread_ranks(2, std::chrono::seconds(10));
  auto fixture = make_worker(
      waits, {.rank = 1, .ranks = 2, .experts = {}, .attention = AttentionLayout::data_parallel},
      std::move(ranks[1]));
  ASSERT_TRUE(fixture.ok()) << fixture.error().message;
  const std::array<std::int32_t, 1> ids{5}, positions{0}, contexts{1}, slots{0};
  const std::array<std::int64_t, 1> cache{0};
  const std::array<std::int32_t, 2> starts{0, 1};
  const std::array<std::int32_t, 2> pages{(*fixture)->worker.page_table_index(0, 0), 0};
  StepInput input;
  input.token_ids = ids;
  input.positions = positions;
  input.slots = cache;
  input.query_starts = starts;
  input.context_lengths = contexts;
  input.batch_slots = slots;
  input.page_table_updates = pages;
  StepOutput output;
  for (const std::vector<std::int64_t>& wrong :
       {std::vector<std::int64_t>{}, std::vector<std::int64_t>{1}, std::vector<std::int64_t>{1, 0},
        std::vector<std::int64_t>{0, 1, 0}}) {
    input.rank_tokens = wrong;
    const Status refused = (*fixture)->worker.step(input, output);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument) << refused.error().message;
  }
}

}  // namespace
}  // namespace koho
