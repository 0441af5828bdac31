// SPDX-License-Identifier: Apache-2.0
#include "model/memory_plan.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "model/config.h"

namespace koho {
namespace {

ModelConfig glm47_fp8() {
  std::vector<std::string> warnings;
  return *parse_model_config(
      *read_file(std::string(KOHO_SOURCE_DIR) + "/tests/data/configs/glm-4.7-fp8.json", 1U << 20U),
      warnings);
}

TEST(MemoryPlan, CutsGlm47OverEightGpus) {
  const ModelConfig config = glm47_fp8();
  const std::vector<WeightBytes> weights = assumed_bytes(config, WeightQuant::fp8_channel);
  std::int64_t total = 0;
  for (const WeightBytes& row : weights) total += row.bytes;
  // The parameters of docs/model.md in FP8, embedding, head and routers in BF16, and an F32 scale
  // for each of 117 million rows.
  EXPECT_NEAR(static_cast<double>(total) / 1e9, 354.4 + 0.47, 0.2);
  const MemoryPlan one = *plan_memory(config, weights, {}, DType::bf16);
  EXPECT_EQ(one.weight_bytes, total);
  EXPECT_EQ(one.kv_bytes_per_token, 376'832);
  for (const ExpertLayout layout : {ExpertLayout::expert_parallel, ExpertLayout::tensor_parallel}) {
    const MemoryPlan eight =
        *plan_memory(config, weights, {.ranks = 8, .experts = layout}, DType::f8_e4m3);
    EXPECT_EQ(eight.kv_bytes_per_token, 194'304 / 8);  // 188,416 and a scale a head in F32
    EXPECT_EQ(eight.partitions, 1);
    // An eighth, and seven eighths more of what every rank holds whole: embedding and routers.
    const double whole = 2.0 * 151552 * 5120 + 89.0 * 160 * 5120 * 2;
    EXPECT_NEAR(static_cast<double>(eight.weight_bytes),
                static_cast<double>(total) / 8 + whole * 7 / 8, 1e7);
  }
  EXPECT_FALSE(plan_memory(config, weights, {.ranks = 3}, DType::bf16).ok());
  EXPECT_FALSE(plan_memory(config, weights, {.ranks = 16}, DType::bf16).ok());
}

TEST(MemoryPlan, DataParallelAttentionCutsTheRoutedExpertsOnly) {
  const ModelConfig config = glm47_fp8();
  const std::vector<WeightBytes> weights = assumed_bytes(config, WeightQuant::fp8_channel);
  std::int64_t total = 0;
  std::int64_t routed = 0;
  for (const WeightBytes& row : weights) {
    total += row.bytes;
    routed += row.weight.routed ? row.bytes : 0;
  }
  const AttentionLayout attention = AttentionLayout::data_parallel;
  const MemoryPlan eight =
      *plan_memory(config, weights, {.ranks = 8, .attention = attention}, DType::bf16);
  EXPECT_EQ(eight.weight_bytes, total - routed + routed / 8);
  EXPECT_EQ(eight.kv_bytes_per_token, 376'832);  // of an eighth of the tokens
  EXPECT_EQ(eight.partitions, 8);
  // Heads need not divide, experts must.
  EXPECT_TRUE(
      plan_memory(config, weights, {.ranks = 16, .attention = attention}, DType::bf16).ok());
  EXPECT_FALSE(
      plan_memory(config, weights, {.ranks = 3, .attention = attention}, DType::bf16).ok());
}

}  // namespace
}  // namespace koho
