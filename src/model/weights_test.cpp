// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "tensor/number.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_checkpoint.h"

namespace koho {
namespace {

using testing::CheckpointRecipe;
using testing::TemporaryDirectory;
using testing::TensorToWrite;

/// Calls `visit` for every view of the weights.
template <typename Visit>
void for_each_view(const ModelSources& sources, const Visit& visit) {
  const auto linear = [&](const LinearSource& source) {
    visit(source.weight);
    if (source.quant != WeightQuant::none) visit(source.scale);
    if (!source.bias.empty()) visit(source.bias);
  };
  const auto mlp = [&](const MlpSource& source) {
    linear(source.gate);
    linear(source.up);
    linear(source.down);
  };
  const auto layer = [&](const LayerSources& source) {
    visit(source.input_norm);
    linear(source.attention.q);
    linear(source.attention.k);
    linear(source.attention.v);
    linear(source.attention.o);
    if (!source.attention.q_norm.empty()) visit(source.attention.q_norm);
    if (!source.attention.k_norm.empty()) visit(source.attention.k_norm);
    visit(source.post_attention_norm);
    if (source.mlp) mlp(*source.mlp);
    if (!source.moe) return;
    visit(source.moe->router);
    visit(source.moe->correction_bias);
    for (const MlpSource& expert : source.moe->experts) mlp(expert);
    mlp(source.moe->shared);
  };
  visit(sources.embedding);
  for (const LayerSources& source : sources.layers) layer(source);
  visit(sources.final_norm);
  linear(sources.lm_head);
  if (!sources.mtp) return;
  visit(sources.mtp->embedding_norm);
  visit(sources.mtp->hidden_norm);
  linear(sources.mtp->projection);
  layer(sources.mtp->layer);
  visit(sources.mtp->final_norm);
  visit(sources.mtp->embedding);
  linear(sources.mtp->head);
}

struct Opened {
  std::unique_ptr<TemporaryDirectory> directory = std::make_unique<TemporaryDirectory>();
  std::optional<Checkpoint> checkpoint;
  std::optional<ResolvedWeights> weights;
  std::string error;
};

Opened open_tensors(const ModelConfig& config,
                    const std::vector<TensorToWrite>& tensors,
                    int shards = 3,
                    std::size_t data_offset = 0) {
  Opened opened;
  testing::write_tensors(opened.directory->path(), tensors, shards, data_offset);
  Result<Checkpoint> checkpoint = Checkpoint::open(opened.directory->path());
  if (!checkpoint.ok()) {
    opened.error = checkpoint.error().message;
    return opened;
  }
  opened.checkpoint.emplace(*std::move(checkpoint));
  Result<ResolvedWeights> weights = resolve_weights(config, *opened.checkpoint);
  if (weights.ok())
    opened.weights.emplace(*std::move(weights));
  else
    opened.error = weights.error().message;
  return opened;
}

Opened open_recipe(const CheckpointRecipe& recipe, int shards = 3, std::size_t data_offset = 0) {
  return open_tensors(recipe.config, testing::random_tensors(recipe), shards, data_offset);
}

WeightQuant all_channel(const ExpectedWeight& row) {
  const bool block =
      row.name.find("_proj.") != std::string::npos && row.name.find("eh_proj") == std::string::npos;
  return block ? WeightQuant::fp8_channel : WeightQuant::none;
}

TEST(Weights, EveryWeightLiesInAMapping) {
  for (const int shards : {0, 1, 4}) {
    CheckpointRecipe recipe;
    recipe.quant = all_channel;
    const Opened opened = open_recipe(recipe, shards);
    ASSERT_TRUE(opened.weights) << opened.error;
    int views = 0;
    for_each_view(opened.weights->sources, [&](const ConstTensorView& view) {
      ++views;
      ASSERT_FALSE(view.empty());
      EXPECT_TRUE(opened.checkpoint->is_mapped(view));
    });
    EXPECT_GT(views, 100);
    EXPECT_EQ(opened.checkpoint->stats().num_copied, 0);
    EXPECT_EQ(opened.weights->warnings.size(), 1U);  // no quantization_config
  }
}

TEST(Weights, MisalignedTensorsAreCopiedAndCounted) {
  CheckpointRecipe recipe;
  recipe.quant = all_channel;
  const Opened opened = open_recipe(recipe, 1, 1);
  ASSERT_TRUE(opened.weights) << opened.error;
  std::int64_t copied = 0;
  std::uint64_t copied_bytes = 0;
  for_each_view(opened.weights->sources, [&](const ConstTensorView& view) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) %
                  static_cast<std::uintptr_t>(dtype_bytes(view.dtype)),
              0U);
    if (opened.checkpoint->is_mapped(view)) {
      EXPECT_EQ(dtype_bytes(view.dtype), 1);
      return;
    }
    ++copied;
    copied_bytes += static_cast<std::uint64_t>(view.bytes());
  });
  EXPECT_GT(copied, 50);
  EXPECT_EQ(opened.checkpoint->stats().num_copied, copied);
  EXPECT_EQ(opened.checkpoint->stats().copied_bytes, copied_bytes);

  // The copies hold what an aligned file holds.
  const Opened aligned = open_recipe(recipe, 1, 0);
  std::vector<std::string> one;
  std::vector<std::string> other;
  const auto collect = [](std::vector<std::string>& to) {
    return [&to](const ConstTensorView& view) {
      to.emplace_back(reinterpret_cast<const char*>(view.data),
                      static_cast<std::size_t>(view.bytes()));
    };
  };
  for_each_view(opened.weights->sources, collect(one));
  for_each_view(aligned.weights->sources, collect(other));
  EXPECT_EQ(one, other);
}

}  // namespace
}  // namespace koho
