// SPDX-License-Identifier: Apache-2.0
#include "model/memory_plan.h"

#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "model/kv_cache.h"

namespace koho {
namespace {

/// Every rank holds a linear's slice; vectors, router and embedding stand on each whole.
bool is_cut(const ExpectedWeight& weight) {
  return weight.role == WeightRole::linear;
}

}  // namespace

ParameterCounts count_parameters(const ModelConfig& config) {
  ParameterCounts counts;
  std::int64_t routed = 0;
  for (const ExpectedWeight& weight : expected_weights(config, false)) {
    counts.main += weight.parameters();
    if (weight.role != WeightRole::embedding) counts.active += weight.parameters();
    if (weight.routed) routed += weight.parameters();
  }
  counts.active -=
      routed / config.n_routed_experts * (config.n_routed_experts - config.num_experts_per_tok);
  for (const ExpectedWeight& weight : expected_weights(config, true)) {
    counts.mtp += weight.optional ? 0 : weight.parameters();
    counts.mtp_own += weight.optional ? weight.parameters() : 0;
  }
  counts.mtp -= counts.main;
  return counts;
}

std::vector<WeightBytes> stored_bytes(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::vector<WeightBytes> weights;
  for (ExpectedWeight& weight : expected_weights(config, false)) {
    std::int64_t bytes = 0;
    const std::string module = weight.name.substr(0, weight.name.rfind('.'));
    for (const std::string& name :
         {weight.name, module + ".weight_scale", module + ".weight_scale_inv", module + ".bias"})
      if (const CheckpointTensor* tensor = checkpoint.find(name))
        bytes += static_cast<std::int64_t>(tensor->bytes.size());
    if (bytes == 0)
      bytes = weight.parameters() * dtype_bytes(DType::bf16);  // a slice of fused experts
    weights.push_back({std::move(weight), bytes});
  }
  return weights;
}

std::vector<WeightBytes> assumed_bytes(const ModelConfig& config, WeightQuant quant) {
  std::vector<WeightBytes> weights;
  for (ExpectedWeight& weight : expected_weights(config, false)) {
    std::int64_t element_bytes = weight.role == WeightRole::correction_bias ? 4 : 2;
    std::int64_t scales = 0;
    if (weight.role == WeightRole::linear && weight.name != "lm_head.weight" &&
        quant != WeightQuant::none) {
      element_bytes = 1;
      if (quant == WeightQuant::fp8_tensor) scales = 1;
      if (quant == WeightQuant::fp8_channel) scales = weight.shape[0];
      if (quant == WeightQuant::fp8_block)
        scales = ceil_div(weight.shape[0], kQuantBlock) * ceil_div(weight.shape[1], kQuantBlock);
    }
    const std::int64_t bias = weight.bias ? 2 * weight.shape[0] : 0;
    const std::int64_t bytes = weight.shape.elements() * element_bytes + 4 * scales + bias;
    weights.push_back({std::move(weight), bytes});
  }
  return weights;
}

std::int64_t kv_bytes_per_token(const ModelConfig& config, DType kv_dtype) {
  return KvCache::page_bytes({.layers = config.num_hidden_layers,
                              .pages = 1,
                              .kv_heads = config.num_key_value_heads,
                              .width = config.head_dim,
                              .dtype = kv_dtype}) /
         kPageTokens;
}

Result<MemoryPlan> plan_memory(const ModelConfig& config,
                               const std::vector<WeightBytes>& weights,
                               const Shard& shard,
                               DType kv_dtype) {
  KOHO_TRY(check_shard(config, shard));
  const std::int64_t token_ranks = shard.of_tokens().ranks;
  MemoryPlan plan;
  for (const WeightBytes& row : weights) {
    const std::int64_t ranks = row.weight.routed ? shard.ranks : token_ranks;
    plan.weight_bytes += is_cut(row.weight) ? ceil_div(row.bytes, ranks) : row.bytes;
  }
  // Under data-parallel attention a token's keys and values lie whole on one of the ranks.
  plan.kv_bytes_per_token = kv_bytes_per_token(config, kv_dtype) / token_ranks;
  plan.partitions = shard.ranks / token_ranks;
  return plan;
}

}  // namespace koho
