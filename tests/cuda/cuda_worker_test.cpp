// SPDX-License-Identifier: Apache-2.0
// A worker on a GPU: weights generated on the device are the host's, a sequence's tokens do not
// depend on other requests of the batch nor on how a batch is padded, and thousands of steps leave
// memory as it was. The model is a small synthetic one with tensors large enough to be generated on
// the device. KOHO_LEAK_STEPS sets the number of steps (10,000).
#include "tests/cuda/cuda_worker.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "tests/support/environment.h"

namespace koho {
namespace {

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
