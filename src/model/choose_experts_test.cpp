// SPDX-License-Identifier: Apache-2.0
#include "model/choose_experts.h"

#include <gtest/gtest.h>

#include "tests/support/test_checkpoint.h"

namespace koho {
namespace {

constexpr ExpertLayout kWhole = ExpertLayout::expert_parallel;
constexpr ExpertLayout kSliced = ExpertLayout::tensor_parallel;

/// Weights of a model without layers: its head, of which only the shape is looked at.
ModelSources head_of(const ModelConfig& config) {
  ModelSources sources;
  sources.lm_head.weight =
      ConstTensorView(nullptr, DType::bf16, {config.vocab_size, config.hidden_size}, DeviceId{});
  return sources;
}

/// On GPUs, of a model of 160 experts whose weights are all to be cut as its widths allow.
ExpertLayout choice(const Shard& shard, std::int64_t sequences, bool on_gpus = true) {
  ModelConfig config = testing::small_config();
  config.num_attention_heads = 96;
  config.num_key_value_heads = 8;
  config.n_routed_experts = 160;
  config.moe_intermediate_size = 1536;
  config.intermediate_size = 12'288;
  config.vocab_size = 151'552;
  return choose_experts(config, head_of(config), shard, sequences, on_gpus).layout;
}

TEST(ChooseExperts, SlicedWhereDecodeWasMeasuredAsFaster) {
  EXPECT_EQ(choice({.ranks = 8}, 1), kSliced);
  EXPECT_EQ(choice({.ranks = 8}, 32), kSliced);
  EXPECT_EQ(choice({.ranks = 8}, 33), kWhole);
  EXPECT_EQ(choice({.ranks = 4}, 48), kSliced);
  EXPECT_EQ(choice({.ranks = 4}, 49), kWhole);
  EXPECT_EQ(choice({.ranks = 2}, 48), kSliced);
}

TEST(ChooseExperts, WholeWhereNothingSpeaksForSlices) {
  EXPECT_EQ(choice({}, 64), kWhole);
  EXPECT_EQ(choice({.ranks = 8}, 64, false), kWhole);
  EXPECT_EQ(choice({.ranks = 8, .attention = AttentionLayout::data_parallel}, 64), kWhole);
}

TEST(ChooseExperts, WhatCanBeCutDecidesFirst) {
  ModelConfig config = testing::small_config();
  config.num_attention_heads = 96;
  config.num_key_value_heads = 8;
  config.vocab_size = 1024;
  config.intermediate_size = 1024;
  config.n_routed_experts = 6;
  config.moe_intermediate_size = 64;
  const ExpertsChoice sliced = choose_experts(config, head_of(config), {.ranks = 4}, 8, false);
  EXPECT_EQ(sliced.layout, kSliced);
  EXPECT_NE(sliced.reason.find("4 ranks do not divide 6 experts"), std::string::npos);
  config.n_routed_experts = 8;
  config.moe_intermediate_size = 66;
  const ExpertsChoice whole = choose_experts(config, head_of(config), {.ranks = 4}, 8, true);
  EXPECT_EQ(whole.layout, kWhole);
  EXPECT_NE(whole.reason.find("66"), std::string::npos) << whole.reason;
}

}  // namespace
}  // namespace koho
