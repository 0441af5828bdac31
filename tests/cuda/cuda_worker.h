// SPDX-License-Identifier: Apache-2.0
// For tests: a worker on a GPU with a small synthetic model, whose tensors are large enough to be
// generated on the device, and rows to run on it.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/one_rank.h"
#include "cuda/cuda_backend.h"
#include "model/synthetic.h"
#include "plan/step_plan.h"
#include "worker/worker.h"

namespace koho {

constexpr std::int64_t kBatchSlots = 24;
constexpr std::int64_t kContext = 640;
constexpr std::int64_t kChunk = 256;
constexpr std::uint64_t kSeed = 7;

/// What a model is loaded for.
struct Room {
  std::int64_t batch_slots = kBatchSlots;
  std::int64_t context = kContext;
  std::int64_t chunk = kChunk;
  DType kv_dtype = DType::bf16;

  std::int64_t pages_each() const { return context / kPageTokens; }
};

inline ModelConfig shape() {
  ModelConfig config;
  config.vocab_size = 2048;
  config.hidden_size = 1024;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.intermediate_size = 2048;
  config.moe_intermediate_size = 1024;
  config.n_routed_experts = 16;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 4;
  config.n_group = 1;
  config.topk_group = 1;
  config.first_k_dense_replace = 1;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e6;
  config.partial_rotary_factor = 0.5;
  config.routed_scaling_factor = 2.5;
  config.attention_bias = true;
  config.use_qk_norm = true;
  config.norm_topk_prob = true;
  config.quantization = QuantizationConfig{.method = "compressed-tensors",
                                           .schemes = {WeightQuant::fp8_channel},
                                           .ignored = {"lm_head"}};
  return config;
}

/// One sequence's tokens of a step.
struct Row {
  std::int64_t batch_slot = 0;
  std::int64_t first = 0;  // position
  std::vector<std::int32_t> ids;
  bool of_prompt = false;  // prefill, also if it is one token
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const ModelSources& sources,
                                             const SyntheticAddressMap* synthetic,
                                             std::optional<bool> deterministic = {},
                                             const Room& room = {}) {
    KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                    make_cuda_backend({.deterministic = deterministic, .synthetic = synthetic}));
    WorkerSettings settings;
    settings.load.limits = {.tokens_max = room.chunk + room.batch_slots,
                            .sequences_max = room.batch_slots,
                            .context_max = room.context,
                            .logit_rows_max = room.batch_slots,
                            .vocabulary = 0};
    settings.load.kv_pages = room.batch_slots * room.pages_each();
    settings.load.kv_dtype = room.kv_dtype;
    settings.counts_slots = room.batch_slots;
    settings.tokenizer_tokens = shape().vocab_size;
    KOHO_TRY_ASSIGN(Worker worker, Worker::create(shape(), sources, settings, std::move(backend),
                                                  std::make_unique<OneRank>()));
    return std::unique_ptr<Model>(new Model(std::move(worker), room));
  }

  /// Starts a step; the last token of every batch slot's rows is sampled at temperature 1 from its
  /// own seed. Decodes come first.
  Status enqueue(const std::vector<Row>& rows) {
    std::vector<std::int32_t> ids, positions, starts{0}, contexts, batch_slots, places;
    std::vector<std::int32_t> logit_rows, sampled;
    std::vector<std::int64_t> slots;
    std::vector<SamplingRow> sampling;
    std::int64_t decodes = 0;
    for (const Row& row : rows) {
      const bool decoded = row.ids.size() == 1 && !row.of_prompt;
      if (decoded && decodes == std::ssize(batch_slots)) ++decodes;
      for (std::size_t i = 0; i < row.ids.size(); ++i) {
        const std::int64_t position = row.first + static_cast<std::int64_t>(i);
        ids.push_back(row.ids[i]);
        positions.push_back(static_cast<std::int32_t>(position));
        slots.push_back(slot(row.batch_slot, position));
      }
      starts.push_back(static_cast<std::int32_t>(ids.size()));
      contexts.push_back(positions.back() + 1);
      batch_slots.push_back(static_cast<std::int32_t>(row.batch_slot));
      if (&row != &rows.back() && (&row + 1)->batch_slot == row.batch_slot) continue;
      sampled.push_back(batch_slots.back());
      logit_rows.push_back(static_cast<std::int32_t>(ids.size()) - 1);
      SamplingRow draw;
      draw.seed = 99;
      draw.output_position = positions.back();
      draw.temperature = 1.0F;
      draw.logprobs = 0;
      sampling.push_back(draw);
      for (std::int64_t i = 0; i < room_.pages_each(); ++i)
        places.insert(places.end(), {worker_.page_table_index(row.batch_slot, i),
                                     static_cast<std::int32_t>(page(row.batch_slot, i))});
    }
    return worker_.enqueue({.token_ids = ids,
                            .positions = positions,
                            .slots = slots,
                            .query_starts = starts,
                            .context_lengths = contexts,
                            .batch_slots = batch_slots,
                            .decodes = decodes,
                            .logit_rows = logit_rows,
                            .sample_batch_slots = sampled,
                            .sampling = sampling,
                            .biases = {},
                            .masks = {},
                            .page_table_updates = places,
                            .output_record_updates = std::exchange(output_record_updates_, {}),
                            .page_copies = {}});
  }
  /// From the next step on the batch slot's output begins anew and ends with `stop`.
  void begin_output(std::int64_t batch_slot, const std::vector<std::int32_t>& stop) {
    const auto set = [&](std::int32_t word, std::int32_t value) {
      output_record_updates_.insert(output_record_updates_.end(),
                                    {Worker::output_record_index(batch_slot, word), value});
    };
    set(OutputRecord::kEnded, 0);
    set(OutputRecord::kOutput, 0);
    std::int32_t at = OutputRecord::kStops;
    if (!stop.empty()) set(at++, static_cast<std::int32_t>(stop.size()));
    for (const std::int32_t token : stop) set(at++, token);
    set(at, 0);
  }
  /// Where a position of a batch slot lies in the cache.
  std::int64_t slot(std::int64_t batch_slot, std::int64_t position) const {
    return page(batch_slot, position / kPageTokens) * kPageTokens + position % kPageTokens;
  }
  Status finish() { return worker_.finish(output_); }

  const StepOutput& output() const { return output_; }
  const Room& room() const { return room_; }
  Worker& worker() { return worker_; }

 private:
  Model(Worker worker, const Room& room) : worker_(std::move(worker)), room_(room) {}

  /// Pages of a batch slot lie apart and in no order.
  std::int64_t page(std::int64_t batch_slot, std::int64_t index) const {
    return (room_.pages_each() - 1 - index) * room_.batch_slots + batch_slot;
  }

  Worker worker_;
  Room room_;
  std::vector<std::int32_t> output_record_updates_;  // for the next step
  StepOutput output_;
};

inline std::vector<std::int32_t> random_ids(std::mt19937& random, std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids)
    id = static_cast<std::int32_t>(random() % static_cast<unsigned>(shape().vocab_size));
  return ids;
}

class CudaWorker : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<std::unique_ptr<Backend>> probe = make_cuda_backend({.self_test = false});
    if (!probe.ok() && probe.error().code == ErrorCode::not_found) GTEST_SKIP() << "no GPU";
  }
};

}  // namespace koho
