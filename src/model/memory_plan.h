// SPDX-License-Identifier: Apache-2.0
// How large a model is, and how it would lie on GPUs: parameters, bytes, weights per rank under the
// cut of model/sharding.h, room for keys and values. Arithmetic only; needs no GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/sharding.h"
#include "model/weights.h"

namespace koho {

struct ParameterCounts {
  std::int64_t main = 0;     // without the MTP layer
  std::int64_t active = 0;   // that a token's pass multiplies with: no embedding, A of E experts
  std::int64_t mtp = 0;      // of the MTP layer, without own embedding and head
  std::int64_t mtp_own = 0;  // its own embedding and head
};

ParameterCounts count_parameters(const ModelConfig& config);

/// One weight's bytes as stored, with scales and bias. Rows of the MTP layer are left out.
struct WeightBytes {
  ExpectedWeight weight;
  std::int64_t bytes = 0;
};

/// As the tensors of a checkpoint are that resolve_weights accepted.
std::vector<WeightBytes> stored_bytes(const ModelConfig& config, const Checkpoint& checkpoint);

/// As they would be with every projection of the layers stored as `quant`, channel scales in F32.
std::vector<WeightBytes> assumed_bytes(const ModelConfig& config, WeightQuant quant);

struct MemoryPlan {
  std::int64_t weight_bytes = 0;        // on every rank
  std::int64_t kv_bytes_per_token = 0;  // on every rank, on average over the tokens in the cache
};

/// Memory of one rank. Errors: as check_shard.
Result<MemoryPlan> plan_memory(const ModelConfig& config,
                               const std::vector<WeightBytes>& weights,
                               const Shard& shard,
                               std::int64_t kv_element_bytes);

}  // namespace koho
