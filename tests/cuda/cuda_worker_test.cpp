// SPDX-License-Identifier: Apache-2.0
// A worker on a GPU: weights generated on the device are the host's, a sequence's tokens do not
// depend on other requests of the batch nor on how a batch is padded, and thousands of steps leave
// memory as it was. The model is a small synthetic one with tensors large enough to be generated on
// the device. KOHO_LEAK_STEPS sets the number of steps (10,000).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "comm/one_rank.h"
#include "cuda/cuda_backend.h"
#include "model/synthetic.h"
#include "plan/step_plan.h"
#include "tests/support/environment.h"
#include "worker/worker.h"

namespace koho {
namespace {

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

ModelConfig shape() {
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

std::vector<std::int32_t> random_ids(std::mt19937& random, std::int64_t count) {
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

TEST_F(CudaWorker, DrawsOnTheDeviceWhatTheHostDraws) {
  Result<HostSyntheticWeights> filled = HostSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(filled.ok()) << filled.error().message;
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok()) << synthetic.error().message;
  SyntheticAddressMap::Place place;
  ASSERT_TRUE(
      (*synthetic)
          ->find((*synthetic)->sources().layers[1].moe->experts[3].gate.weight.data, place));
  std::vector<std::vector<float>> logits;
  for (const SyntheticAddressMap* memory :
       {static_cast<const SyntheticAddressMap*>(nullptr),
        static_cast<const SyntheticAddressMap*>(synthetic->get())}) {
    auto model =
        Model::load(memory != nullptr ? (*synthetic)->sources() : filled->sources(), memory);
    ASSERT_TRUE(model.ok()) << model.error().message;
    std::mt19937 random(1);
    const Status status = (*model)->enqueue({{0, 0, random_ids(random, 100)}});
    ASSERT_TRUE(status.ok()) << status.error().message;
    ASSERT_TRUE((*model)->finish().ok());
    const ConstTensorView view = (*model)->output().logits;
    std::vector<float>& row = logits.emplace_back(static_cast<std::size_t>(view.elements()));
    ASSERT_TRUE((*model)
                    ->worker()
                    .backend()
                    .download(std::as_writable_bytes(std::span<float>(row)), view)
                    .ok());
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_GT(*std::max_element(logits[0].begin(), logits[0].end()), 0.5F);
}

/// Tokens and log-probabilities of `steps` decode steps after a prompt, for every batch slot of a
/// batch.
struct Story {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::vector<float>> logprobs;
  std::vector<std::vector<RowEnd>> ends;
};

void tell(Model& model,
          const std::vector<std::int64_t>& batch_slots,
          const std::vector<std::vector<std::int32_t>>& prompts,
          int steps,
          Story& story) {
  story.ids.assign(static_cast<std::size_t>(kBatchSlots), {});
  story.logprobs.assign(static_cast<std::size_t>(kBatchSlots), {});
  story.ends.assign(static_cast<std::size_t>(kBatchSlots), {});
  const auto note = [&](const std::vector<std::int64_t>& rows) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      story.ids[static_cast<std::size_t>(rows[r])].push_back(model.output().ids[r]);
      story.logprobs[static_cast<std::size_t>(rows[r])].push_back(model.output().logprobs[r]);
      story.ends[static_cast<std::size_t>(rows[r])].push_back(model.output().ends[r]);
    }
  };
  for (const std::int64_t batch_slot : batch_slots) {
    ASSERT_TRUE(
        model.enqueue({{batch_slot, 0, prompts[static_cast<std::size_t>(batch_slot)]}}).ok());
    ASSERT_TRUE(model.finish().ok());
    note({batch_slot});
  }
  const auto decode = [&](int step) {
    std::vector<Row> rows;
    for (const std::int64_t batch_slot : batch_slots)
      rows.push_back({batch_slot,
                      std::ssize(prompts[static_cast<std::size_t>(batch_slot)]) + step,
                      {take_last_sampled(static_cast<std::int32_t>(batch_slot))}});
    return model.enqueue(rows);
  };
  // One step in flight, as the engine runs.
  ASSERT_TRUE(decode(0).ok());
  for (int step = 1; step <= steps; ++step) {
    if (step < steps) {
      ASSERT_TRUE(decode(step).ok());
    }
    const Status status = model.finish();
    ASSERT_TRUE(status.ok()) << status.error().message;
    note(batch_slots);
  }
}

TEST_F(CudaWorker, ASequenceDependsNeitherOnItsBatchNorOnPadding) {
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok());
  auto model = Model::load((*synthetic)->sources(), synthetic->get());
  ASSERT_TRUE(model.ok()) << model.error().message;
  std::mt19937 random(2);
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int64_t batch_slot = 0; batch_slot < kBatchSlots; ++batch_slot)
    prompts.push_back(random_ids(random, 1 + static_cast<std::int64_t>(random() % 90)));
  constexpr int kSteps = 40;
  std::vector<Story> alone(static_cast<std::size_t>(kBatchSlots));
  for (std::int64_t batch_slot = 0; batch_slot < kBatchSlots; ++batch_slot)
    tell(**model, {batch_slot}, prompts, kSteps, alone[static_cast<std::size_t>(batch_slot)]);
  std::vector<std::int64_t> batch_slots(static_cast<std::size_t>(kBatchSlots));
  std::iota(batch_slots.begin(), batch_slots.end(), 0);
  for (const std::size_t batch : {2U, 3U, 7U, 11U, 24U}) {
    std::shuffle(batch_slots.begin(), batch_slots.end(), random);
    const std::vector<std::int64_t> some(batch_slots.begin(),
                                         batch_slots.begin() + static_cast<int>(batch));
    Story together;
    tell(**model, some, prompts, kSteps, together);
    for (const std::int64_t batch_slot : some) {
      const auto s = static_cast<std::size_t>(batch_slot);
      EXPECT_EQ(together.ids[s], alone[s].ids[s])
          << "batch slot " << batch_slot << " in a batch of " << batch;
      EXPECT_EQ(together.logprobs[s], alone[s].logprobs[s]);
    }
  }
}

TEST_F(CudaWorker, AnOutputEndsOnTheDeviceAndItsRowIsFrozen) {
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok());
  for (const bool deterministic : {false, true}) {
    auto model = Model::load((*synthetic)->sources(), synthetic->get(), deterministic);
    ASSERT_TRUE(model.ok()) << model.error().message;
    std::mt19937 random(6);
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<std::int64_t> batch_slots;
    for (std::int64_t batch_slot = 0; batch_slot < kBatchSlots; ++batch_slot) {
      prompts.push_back(random_ids(random, 1 + static_cast<std::int64_t>(random() % 90)));
      batch_slots.push_back(batch_slot);
    }
    constexpr int kSteps = 30;
    Story whole;
    tell(**model, batch_slots, prompts, kSteps, whole);

    // Every second batch slot stops at one to three of the tokens that it drew.
    std::vector<std::size_t> lengths(batch_slots.size(), whole.ids[0].size());
    for (std::size_t s = 0; s < batch_slots.size(); ++s) {
      const std::vector<std::int32_t>& ids = whole.ids[s];
      std::vector<std::int32_t> stop;
      if (s % 2 == 1) {
        const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(random() % (kSteps - 4));
        stop.assign(begin, begin + 1 + static_cast<std::ptrdiff_t>(random() % 3));
        const auto first = std::search(ids.begin(), ids.end(), stop.begin(), stop.end());
        lengths[s] = static_cast<std::size_t>(first - ids.begin()) + stop.size();
      }
      (*model)->begin_output(batch_slots[s], stop);
    }
    Worker& worker = (*model)->worker();
    const TensorView cache = worker.model().kv_cache().layer(0).k;  // [pages, heads, 64, width]
    std::vector<std::byte> bytes(static_cast<std::size_t>(cache.bytes()));
    ASSERT_TRUE(worker.backend().upload(cache, bytes).ok());
    Story stopped;
    tell(**model, batch_slots, prompts, kSteps, stopped);
    ASSERT_TRUE(worker.backend().download(bytes, cache).ok());
    const auto is_stored = [&](std::int64_t batch_slot, std::int64_t position) {
      const std::int64_t slot = (*model)->slot(batch_slot, position);
      const std::int64_t row = cache.stride(2) * dtype_bytes(cache.dtype);
      const std::int64_t at = slot / kPageTokens * cache.size(1) * kPageTokens + slot % kPageTokens;
      const auto begin = bytes.begin() + at * row;
      return std::any_of(begin, begin + row, [](std::byte byte) { return byte != std::byte{0}; });
    };
    for (std::size_t s = 0; s < batch_slots.size(); ++s) {
      const auto prompt = std::ssize(prompts[s]);
      for (std::size_t i = 0; i < whole.ids[s].size(); ++i) {
        // Token i + 1 is drawn from position prompt + i, which token i is stored at.
        const auto position = prompt + static_cast<std::int64_t>(i);
        const bool goes_on = i + 1 < lengths[s] || lengths[s] == whole.ids[s].size();
        const RowEnd expected = goes_on               ? RowEnd::none
                                : i + 1 == lengths[s] ? RowEnd::ended
                                                      : RowEnd::frozen;
        EXPECT_EQ(stopped.ends[s][i], expected) << "batch slot " << s << ", token " << i;
        if (expected != RowEnd::frozen) {
          EXPECT_EQ(stopped.ids[s][i], whole.ids[s][i]) << "batch slot " << s << ", token " << i;
          EXPECT_EQ(stopped.logprobs[s][i], whole.logprobs[s][i]) << "batch slot " << s;
        }
        if (i + 1 < whole.ids[s].size()) {
          EXPECT_EQ(is_stored(batch_slots[s], position), goes_on)
              << "batch slot " << s << ", token " << i;
        }
      }
    }
  }
}

/// The token after `prompt` and its log-probability, computed in chunks of the given sizes; beside
/// chunks of one token another sequence decodes.
std::pair<std::int32_t, float> after(Model& model,
                                     std::int64_t batch_slot,
                                     const std::vector<std::int32_t>& prompt,
                                     const std::vector<std::int64_t>& chunks) {
  std::int64_t at = 0;
  for (const std::int64_t chunk : chunks) {
    const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<Row> rows;
    if (chunk == 1) rows.push_back({(batch_slot + 1) % model.room().batch_slots, 0, {prompt[0]}});
    rows.push_back({batch_slot, at, {begin, begin + static_cast<std::ptrdiff_t>(chunk)}, true});
    EXPECT_TRUE(model.enqueue(rows).ok());
    EXPECT_TRUE(model.finish().ok());
    at += chunk;
  }
  EXPECT_EQ(at, std::ssize(prompt));
  return {model.output().ids.back(), model.output().logprobs.back()};
}

/// Of 24 prompts, how many end in other bits when they come in other chunks.
int differing(Model& model) {
  std::mt19937 random(4);
  int found = 0;
  for (int round = 0; round < 24; ++round) {
    const std::vector<std::int32_t> prompt = random_ids(random, 250);
    const std::vector<std::vector<std::int64_t>> ways{
        {250}, {97, 153}, {96, 96, 58}, {246, 1, 1, 1, 1}, {13, 64, 1, 1, 100, 70, 1}};
    const auto first = after(model, round, prompt, ways[0]);
    bool differs = false;
    for (const std::vector<std::int64_t>& way : ways)
      differs = differs || after(model, (round + 5) % kBatchSlots, prompt, way) != first;
    found += differs ? 1 : 0;
  }
  return found;
}

TEST_F(CudaWorker, BitsDoNotDependOnChunks) {
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok());
  for (const bool deterministic : {true, false}) {
    auto model = Model::load((*synthetic)->sources(), synthetic->get(), deterministic);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const int found = differing(**model);
    std::printf("%s: %d of 24 prompts end in other bits by their chunks\n",
                deterministic ? "deterministic" : "default", found);
    if (deterministic) {
      EXPECT_EQ(found, 0);
    }
  }
}

/// Output that is computed again at once, a row a token, beside another prompt: the bits of one
/// decode after the other.
TEST_F(CudaWorker, OutputDecodedAgainHasTheSameBits) {
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok());
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    auto model = Model::load((*synthetic)->sources(), synthetic->get(), {}, {.kv_dtype = dtype});
    ASSERT_TRUE(model.ok()) << model.error().message;
    std::mt19937 random(7);
    for (const std::int64_t length : {1, 63, 200}) {
      const std::vector<std::int32_t> prompt = random_ids(random, length);
      const std::int64_t tokens = (*model)->room().batch_slots - 1;
      const std::vector<std::int32_t> output = random_ids(random, tokens);
      after(**model, 0, prompt, {length});
      after(**model, 1, prompt, {length});
      std::vector<Row> again;
      for (std::int64_t i = 0; i < tokens; ++i) {
        const std::int32_t id = output[static_cast<std::size_t>(i)];
        ASSERT_TRUE((*model)->enqueue({{0, length + i, {id}}}).ok());
        ASSERT_TRUE((*model)->finish().ok());
        again.push_back({1, length + i, {id}});
      }
      const std::pair alone((*model)->output().ids[0], (*model)->output().logprobs[0]);
      again.push_back({2, 0, random_ids(random, 90), true});
      ASSERT_TRUE((*model)->enqueue(again).ok());
      ASSERT_TRUE((*model)->finish().ok());
      EXPECT_EQ(std::pair((*model)->output().ids[0], (*model)->output().logprobs[0]), alone)
          << "a prompt of " << length;
    }
  }
}

/// The largest context: what its last token is followed by does not depend on the way there, in
/// pages of either kind. (Attention over 131,072 tokens against float64: the operator cases.)
TEST_F(CudaWorker, TheLongestContextEndsInTheSameBitsHoweverItCame) {
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok());
  constexpr std::int64_t kLongest = 131072;
  std::mt19937 random(5);
  const std::vector<std::int32_t> prompt = random_ids(random, kLongest);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    const Room room{.batch_slots = 2, .context = kLongest, .chunk = 8192, .kv_dtype = dtype};
    auto model = Model::load((*synthetic)->sources(), synthetic->get(), true, room);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const auto whole = after(**model, 0, prompt, std::vector<std::int64_t>(16, 8192));
    std::vector<std::int64_t> chunks(26, 5000);  // then the rest, its last tokens one by one
    chunks.push_back(kLongest - 26 * 5000 - 5);
    chunks.insert(chunks.end(), 5, 1);
    const auto cut = after(**model, 1, prompt, chunks);
    EXPECT_EQ(whole, cut) << (dtype == DType::bf16 ? "bf16" : "FP8") << " pages";
    EXPECT_TRUE(std::isfinite(whole.second));
  }
}

TEST_F(CudaWorker, ThousandsOfStepsLeaveDeviceMemoryAsItWas) {
  auto synthetic = DeviceSyntheticWeights::make(shape(), kSeed);
  ASSERT_TRUE(synthetic.ok());
  auto model = Model::load((*synthetic)->sources(), synthetic->get());
  ASSERT_TRUE(model.ok()) << model.error().message;
  Backend& backend = (*model)->worker().backend();
  const auto steps =
      static_cast<int>(testing::number_from_environment("KOHO_LEAK_STEPS", 10000, 1));
  std::mt19937 random(3);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(kBatchSlots));  // tokens cached
  // From the first step on: kernels are loaded, and libraries have seen the shapes.
  const Result<MemoryUse> before = backend.memory_use();
  ASSERT_TRUE(before.ok());
  for (int step = 0; step < steps; ++step) {
    // Decodes of some batch slots, now and then a prompt in the same step.
    std::vector<Row> rows;
    std::int64_t idle = -1;
    for (std::int64_t batch_slot = 0; batch_slot < kBatchSlots; ++batch_slot) {
      std::int64_t& length = lengths[static_cast<std::size_t>(batch_slot)];
      if (length == kContext) length = 0;  // ended
      if (length == 0) {
        idle = batch_slot;
      } else if (random() % 4 != 0) {
        rows.push_back(
            {batch_slot, length++, {take_last_sampled(static_cast<std::int32_t>(batch_slot))}});
      }
    }
    if (idle >= 0 && (rows.empty() || random() % 8 == 0)) {
      const auto prompt = 1 + static_cast<std::int64_t>(random() % kChunk);
      rows.push_back({idle, 0, random_ids(random, prompt)});
      lengths[static_cast<std::size_t>(idle)] = prompt;
    }
    if (rows.empty()) continue;
    const Status status = (*model)->enqueue(rows);
    ASSERT_TRUE(status.ok()) << "step " << step << ": " << status.error().message;
    ASSERT_TRUE((*model)->finish().ok());
    for (const std::int32_t id : (*model)->output().ids) ASSERT_GE(id, 0) << "step " << step;
  }
  const Result<MemoryUse> after = backend.memory_use();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->allocations, before->allocations);
  EXPECT_EQ(after->held_bytes, before->held_bytes);
  EXPECT_EQ(after->free_bytes, before->free_bytes);
}

}  // namespace
}  // namespace koho
