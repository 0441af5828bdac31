// SPDX-License-Identifier: Apache-2.0
// A worker on a GPU: a token's bits depend neither on the chunks of its prompt nor on output being
// decoded again.
#include <cmath>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cuda/cuda_worker.h"

namespace koho {
namespace {

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
      // Many times: a row must not read what the step's other rows are about to write.
      for (int time = 0; time < 16; ++time) {
        after(**model, 1, random_ids(random, length + tokens), {length + tokens});
        after(**model, 1, prompt, {length});
        std::vector<Row> rows = again;
        if (time % 2 == 1) rows.push_back({2, 0, random_ids(random, 90), true});
        ASSERT_TRUE((*model)->enqueue(rows).ok());
        ASSERT_TRUE((*model)->finish().ok());
        EXPECT_EQ(std::pair((*model)->output().ids[0], (*model)->output().logprobs[0]), alone)
            << "a prompt of " << length;
      }
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

}  // namespace
}  // namespace koho
