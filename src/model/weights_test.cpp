// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

TEST(Weights, TheTableIsTheListOfTheReleasedModels) {
  ModelConfig config = testing::small_config();
  config.num_hidden_layers = 4;
  config.first_k_dense_replace = 3;
  std::map<std::string, std::string> table;
  for (const ExpectedWeight& row : expected_weights(config, true))
    table[row.name] = to_string(row.shape) + (row.bias ? " bias" : "");
  EXPECT_EQ(table["model.embed_tokens.weight"], "[96, 24]");
  EXPECT_EQ(table["model.norm.weight"], "[24]");
  EXPECT_EQ(table["lm_head.weight"], "[96, 24]");
  for (const int layer : {0, 1, 2, 3, 4}) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    EXPECT_EQ(table[prefix + "input_layernorm.weight"], "[24]");
    EXPECT_EQ(table[prefix + "post_attention_layernorm.weight"], "[24]");
    EXPECT_EQ(table[prefix + "self_attn.q_proj.weight"], "[32, 24] bias");
    EXPECT_EQ(table[prefix + "self_attn.k_proj.weight"], "[16, 24] bias");
    EXPECT_EQ(table[prefix + "self_attn.v_proj.weight"], "[16, 24] bias");
    EXPECT_EQ(table[prefix + "self_attn.o_proj.weight"], "[24, 32]");
    EXPECT_EQ(table[prefix + "self_attn.q_norm.weight"], "[8]");
    EXPECT_EQ(table[prefix + "self_attn.k_norm.weight"], "[8]");
    if (layer < 3) {
      EXPECT_EQ(table[prefix + "mlp.gate_proj.weight"], "[40, 24]");
      EXPECT_EQ(table[prefix + "mlp.up_proj.weight"], "[40, 24]");
      EXPECT_EQ(table[prefix + "mlp.down_proj.weight"], "[24, 40]");
      continue;
    }
    EXPECT_EQ(table[prefix + "mlp.gate.weight"], "[4, 24]");
    EXPECT_EQ(table[prefix + "mlp.gate.e_score_correction_bias"], "[4]");
    for (const char* expert : {"experts.0", "experts.3", "shared_experts"}) {
      EXPECT_EQ(table[prefix + "mlp." + expert + ".gate_proj.weight"], "[12, 24]");
      EXPECT_EQ(table[prefix + "mlp." + expert + ".up_proj.weight"], "[12, 24]");
      EXPECT_EQ(table[prefix + "mlp." + expert + ".down_proj.weight"], "[24, 12]");
    }
  }
  EXPECT_EQ(table["model.layers.4.enorm.weight"], "[24]");
  EXPECT_EQ(table["model.layers.4.hnorm.weight"], "[24]");
  EXPECT_EQ(table["model.layers.4.eh_proj.weight"], "[24, 48]");
  EXPECT_EQ(table["model.layers.4.shared_head.norm.weight"], "[24]");
  EXPECT_EQ(table["model.layers.4.embed_tokens.weight"], "[96, 24]");
  EXPECT_EQ(table["model.layers.4.shared_head.head.weight"], "[96, 24]");
  // 3 global, 3 dense layers of 8 + 3, 2 sparse layers of 8 + 2 + 4 * 3 + 3, 6 of the MTP layer.
  EXPECT_EQ(table.size(), 3U + 3U * 11U + 2U * 25U + 6U);

  config.use_qk_norm = false;
  config.attention_bias = false;
  config.n_shared_experts = 2;
  for (const ExpectedWeight& row : expected_weights(config, false)) {
    EXPECT_FALSE(row.bias);
    EXPECT_EQ(row.name.find("_norm.weight"), std::string::npos);
    if (row.name == "model.layers.3.mlp.shared_experts.down_proj.weight") {
      EXPECT_EQ(row.shape, (Shape{24, 24}));
    }
  }
}

TEST(Weights, EveryFormOfFp8IsSeenTensorByTensor) {
  for (const char* scale_dtype : {"F32", "BF16"}) {
    for (const bool column : {true, false}) {
      for (const bool inverse : {true, false}) {
        CheckpointRecipe recipe;
        recipe.config.hidden_size = 200;  // two blocks, the second short
        recipe.scale_dtype = scale_dtype;
        recipe.channel_scale_column = column;
        recipe.inverse_name = inverse;
        recipe.quant = [](const ExpectedWeight& row) {
          if (row.name.find("q_proj") != std::string::npos) return WeightQuant::fp8_channel;
          if (row.name.find("o_proj") != std::string::npos) return WeightQuant::fp8_tensor;
          if (row.name.find("down_proj") != std::string::npos) return WeightQuant::fp8_block;
          return WeightQuant::none;  // k and v beside q
        };
        const Opened opened = open_recipe(recipe);
        ASSERT_TRUE(opened.weights) << opened.error;
        const LayerSources& layer = opened.weights->sources.layers[1];
        const DType dtype = std::string(scale_dtype) == "F32" ? DType::f32 : DType::bf16;
        EXPECT_EQ(layer.attention.q.quant, WeightQuant::fp8_channel);
        EXPECT_EQ(layer.attention.q.scale.shape, (Shape{32}));
        EXPECT_EQ(layer.attention.q.scale.dtype, dtype);
        EXPECT_EQ(layer.attention.q.bias.shape, (Shape{32}));
        EXPECT_EQ(layer.attention.k.quant, WeightQuant::none);
        EXPECT_TRUE(layer.attention.k.scale.empty());
        EXPECT_EQ(layer.attention.o.quant, WeightQuant::fp8_tensor);
        EXPECT_EQ(layer.attention.o.scale.shape, (Shape{1}));
        EXPECT_EQ(layer.moe->shared.down.quant, WeightQuant::fp8_block);
        EXPECT_EQ(layer.moe->experts[3].down.scale.shape, (Shape{2, 1}));
        EXPECT_EQ(opened.weights->linears[static_cast<std::size_t>(WeightQuant::fp8_channel)],
                  3);  // with MTP's
      }
    }
  }
}

TEST(Weights, ValuesAreThoseOfTheFile) {
  CheckpointRecipe recipe;
  recipe.quant = all_channel;
  std::map<std::string, std::string> data;
  for (const TensorToWrite& tensor : testing::random_tensors(recipe))
    data[tensor.name] = tensor.data;
  const Opened opened = open_recipe(recipe, 2);
  ASSERT_TRUE(opened.weights) << opened.error;
  const auto expect = [&](const ConstTensorView& view, const std::string& name) {
    ASSERT_TRUE(data.contains(name)) << name;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.data),
                          static_cast<std::size_t>(view.bytes())),
              data[name])
        << name;
  };
  const ModelSources& sources = opened.weights->sources;
  expect(sources.embedding, "model.embed_tokens.weight");
  expect(sources.final_norm, "model.norm.weight");
  expect(sources.lm_head.weight, "lm_head.weight");
  expect(sources.layers[0].mlp->up.weight, "model.layers.0.mlp.up_proj.weight");
  expect(sources.layers[1].input_norm, "model.layers.1.input_layernorm.weight");
  expect(sources.layers[1].post_attention_norm, "model.layers.1.post_attention_layernorm.weight");
  expect(sources.layers[1].attention.k.weight, "model.layers.1.self_attn.k_proj.weight");
  expect(sources.layers[1].attention.k.scale, "model.layers.1.self_attn.k_proj.weight_scale");
  expect(sources.layers[1].attention.k.bias, "model.layers.1.self_attn.k_proj.bias");
  expect(sources.layers[1].attention.q_norm, "model.layers.1.self_attn.q_norm.weight");
  expect(sources.layers[1].attention.k_norm, "model.layers.1.self_attn.k_norm.weight");
  expect(sources.layers[1].moe->router, "model.layers.1.mlp.gate.weight");
  expect(sources.layers[1].moe->correction_bias, "model.layers.1.mlp.gate.e_score_correction_bias");
  expect(sources.layers[1].moe->experts[2].gate.weight,
         "model.layers.1.mlp.experts.2.gate_proj.weight");
  expect(sources.layers[1].moe->shared.down.weight,
         "model.layers.1.mlp.shared_experts.down_proj.weight");
  expect(sources.mtp->embedding_norm, "model.layers.2.enorm.weight");
  expect(sources.mtp->hidden_norm, "model.layers.2.hnorm.weight");
  expect(sources.mtp->final_norm, "model.layers.2.shared_head.norm.weight");
  expect(sources.mtp->head.weight, "model.layers.2.shared_head.head.weight");
}

TEST(Weights, FusedExpertsAreViewsOfTheirSlices) {
  CheckpointRecipe recipe;
  recipe.fused_experts = true;
  std::map<std::string, std::string> data;
  for (const TensorToWrite& tensor : testing::random_tensors(recipe))
    data[tensor.name] = tensor.data;
  const Opened opened = open_recipe(recipe);
  ASSERT_TRUE(opened.weights) << opened.error;
  const MoeSources& moe = *opened.weights->sources.layers[1].moe;
  const std::string& gate_up = data["model.layers.1.mlp.experts.gate_up_proj"];
  const std::size_t half = 12 * 24 * 2;  // bytes of one expert's gate
  for (std::size_t e = 0; e < 4; ++e) {
    const auto bytes = [](const ConstTensorView& view) {
      return std::string(reinterpret_cast<const char*>(view.data),
                         static_cast<std::size_t>(view.bytes()));
    };
    EXPECT_EQ(moe.experts[e].gate.weight.shape, (Shape{12, 24}));
    EXPECT_EQ(moe.experts[e].down.weight.shape, (Shape{24, 12}));
    EXPECT_EQ(bytes(moe.experts[e].gate.weight), gate_up.substr(2 * e * half, half));
    EXPECT_EQ(bytes(moe.experts[e].up.weight), gate_up.substr((2 * e + 1) * half, half));
    EXPECT_TRUE(opened.checkpoint->is_mapped(moe.experts[e].down.weight));
  }
}

TEST(Weights, TheMtpLayerIsTakenWhenItIsThere) {
  CheckpointRecipe recipe;
  recipe.own_mtp_embedding = false;
  const Opened shared = open_recipe(recipe);
  ASSERT_TRUE(shared.weights) << shared.error;
  ASSERT_TRUE(shared.weights->sources.mtp);
  EXPECT_EQ(shared.weights->sources.mtp->embedding.data, shared.weights->sources.embedding.data);
  EXPECT_EQ(shared.weights->sources.mtp->head.weight.data,
            shared.weights->sources.lm_head.weight.data);

  recipe.with_mtp = false;
  const Opened none = open_recipe(recipe);
  ASSERT_TRUE(none.weights) << none.error;
  EXPECT_FALSE(none.weights->sources.mtp);
  ASSERT_EQ(none.weights->warnings.size(), 1U);

  // Without enorm it is off, and the rest of it unused.
  recipe.with_mtp = true;
  std::vector<TensorToWrite> tensors = testing::random_tensors(recipe);
  std::erase_if(tensors, [](const TensorToWrite& tensor) {
    return tensor.name == "model.layers.2.enorm.weight";
  });
  const Opened off = open_tensors(recipe.config, tensors);
  ASSERT_TRUE(off.weights) << off.error;
  EXPECT_FALSE(off.weights->sources.mtp);
  EXPECT_NE(off.weights->warnings.at(0).find("enorm"), std::string::npos);
}

TEST(Weights, ABf16CorrectionBiasIsWidenedAndCounted) {
  CheckpointRecipe recipe;
  recipe.with_mtp = false;
  std::vector<TensorToWrite> tensors = testing::random_tensors(recipe);
  for (TensorToWrite& tensor : tensors) {
    if (tensor.name != "model.layers.1.mlp.gate.e_score_correction_bias") continue;
    tensor.dtype = "BF16";
    tensor.data = std::string("\x80\x3F\x00\xC0\x00\x00\x40\x3F", 8);  // 1, -2, 0, 0.75
  }
  const Opened opened = open_tensors(recipe.config, tensors);
  ASSERT_TRUE(opened.weights) << opened.error;
  const ConstTensorView bias = opened.weights->sources.layers[1].moe->correction_bias;
  ASSERT_EQ(bias.dtype, DType::f32);
  EXPECT_EQ(std::vector<float>(bias.as<float>(), bias.as<float>() + 4),
            (std::vector<float>{1.0F, -2.0F, 0.0F, 0.75F}));
  EXPECT_EQ(opened.checkpoint->stats().num_copied, 1);
}

TEST(Weights, EveryTensorTakenAwayIsAnErrorThatNamesIt) {
  CheckpointRecipe recipe;
  recipe.quant = all_channel;
  const std::vector<TensorToWrite> good = testing::random_tensors(recipe);
  int errors = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    const std::string& name = good[i].name;
    if (name.find(".enorm.") != std::string::npos ||
        name.find("2.embed_tokens") != std::string::npos ||
        name.find("shared_head.head") != std::string::npos)
      continue;
    std::vector<TensorToWrite> tensors = good;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    const Opened opened = open_tensors(recipe.config, tensors, 1);
    ASSERT_FALSE(opened.weights) << name;
    // A missing scale is told by the weight that needs it.
    const std::string stem = name.substr(0, name.rfind("weight_scale"));
    EXPECT_NE(opened.error.find(stem), std::string::npos) << opened.error;
    ++errors;
  }
  EXPECT_GT(errors, 100);
}

TEST(Weights, ManyProblemsAreListedThenCounted) {
  CheckpointRecipe recipe;
  ModelConfig other = recipe.config;
  other.hidden_size = 26;
  const Opened opened = open_tensors(other, testing::random_tensors(recipe));
  EXPECT_FALSE(opened.weights);
  EXPECT_EQ(std::count(opened.error.begin(), opened.error.end(), '\n'), 11) << opened.error;
  EXPECT_NE(opened.error.find("expected BF16 [96, 26], found BF16 [96, 24]"), std::string::npos)
      << opened.error;
  EXPECT_NE(opened.error.find("more"), std::string::npos) << opened.error;
}

TEST(Weights, WhatTheConfigAnnouncesIsHeldAgainstTheTensors) {
  CheckpointRecipe recipe;
  recipe.with_mtp = false;
  recipe.config.num_nextn_predict_layers = 0;
  recipe.quant = all_channel;
  const std::vector<TensorToWrite> tensors = testing::random_tensors(recipe);
  recipe.config.quantization = QuantizationConfig{
      "compressed-tensors", {WeightQuant::fp8_channel}, {"lm_head", "re:.*gate$"}};
  EXPECT_TRUE(open_tensors(recipe.config, tensors).weights->warnings.empty());
  recipe.config.quantization->schemes = {WeightQuant::fp8_block};
  recipe.config.quantization->ignored.push_back("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(open_tensors(recipe.config, tensors).weights->warnings.size(), 2U);
  recipe.quant = nullptr;
  EXPECT_EQ(open_tensors(recipe.config, testing::random_tensors(recipe)).weights->warnings.size(),
            1U);
}

}  // namespace
}  // namespace koho
