// SPDX-License-Identifier: Apache-2.0
// How large a model is and how it would lie on GPUs: parameters, bytes, weights per rank as
// model/sharding.h cuts them, cache bytes per token. Arithmetic only: it needs no GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/sharding.h"
#include "model/weights.h"
#include "tensor/dtype.h"

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

/// What a token takes in the caches of all ranks together, as they are allocated: over all layers,
/// K and V, with the scales of FP8 (f8_e4m3).
std::int64_t kv_bytes_per_token(const ModelConfig& config, DType kv_dtype);

struct MemoryPlan {
  std::int64_t weight_bytes = 0;        // on every rank
  std::int64_t kv_bytes_per_token = 0;  // on every rank that holds the token
  std::int64_t partitions = 1;          // parts of the cache with tokens of their own: the ranks
                                        // under data-parallel attention. A sequence lies in one
};

/// Memory of one rank. Errors: as check_shard.
Result<MemoryPlan> plan_memory(const ModelConfig& config,
                               const std::vector<WeightBytes>& weights,
                               const Shard& shard,
                               DType kv_dtype);

}  // namespace koho
