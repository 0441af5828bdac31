// SPDX-License-Identifier: Apache-2.0
// How routed experts are cut over ranks where nobody says: by what was measured on GPUs.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/sharding.h"
#include "model/weights.h"

namespace koho {

struct ExpertsChoice {
  ExpertLayout layout = ExpertLayout::expert_parallel;
  std::string reason;  // "up to 64 sequences, 4 GPUs decode faster so"
};

/// Chooses for up to `sequences_max` sequences at once. Sliced experts load all ranks alike, whole
/// ones the rank whose experts are chosen most; prompts are faster with whole ones. `shard.experts`
/// and `shard.rank` do not matter. On the CPU nothing was measured: whole.
ExpertsChoice choose_experts(const ModelConfig& config,
                             const ModelSources& sources,
                             const Shard& shard,
                             std::int64_t sequences_max,
                             bool on_gpus);

}  // namespace koho
