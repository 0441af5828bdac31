// SPDX-License-Identifier: Apache-2.0
// How much memory the KV cache gets, and what follows from it: the number of pages and the longest
// request. Pure arithmetic; open_devices() asks devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/choose_experts.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/runtime.h"

namespace koho {

/// Memory of one rank.
struct CacheMemory {
  std::int64_t bytes = 0;  // negative: not even the weights fit
  bool whole = false;      // it was asked for and is taken whole; else as much of it as is needed
};

/// What a rank's device has, in bytes.
struct RankMemory {
  std::int64_t total = 0;
  std::int64_t free = 0;  // before koho loads anything
};

/// The memory of each rank: a share of the host's on the CPU; on CUDA a share of its GPU's, which
/// other ranks may use, too. `total` and `free` [ranks] are those of the devices.
std::vector<RankMemory> memory_of_ranks(const RuntimeOptions& options,
                                        std::span<const RankMemory> devices);

/// Opens the devices in this process, to ask them. Errors: those of the devices.
Result<std::vector<RankMemory>> open_devices(const RuntimeOptions& options);

/// What RuntimeOptions::kv_bytes or memory_share say. Else a quarter of the host's memory on the
/// CPU; on a GPU what weights and a reserve for activations, scratch memory and graphs leave of
/// what is free, on the rank that has least. `devices` [ranks]. Requires: no kv_pages. Errors:
/// resource_exhausted (what was asked for holds no page).
Result<CacheMemory> cache_memory(const ModelConfig& config,
                                 const ModelSources& sources,
                                 const RuntimeOptions& options,
                                 std::span<const RankMemory> devices);

/// Without a context that was asked for, a request may have as many tokens as the model knows
/// positions, if the cache can hold so many; sequences share the cache and do not change that.
/// There are pages for 8,192 tokens of each sequence (or all of its context, where one was asked
/// for), and for one request of the full context, as far as `memory` goes; a context that was asked
/// for is given in any case.
RuntimeSizes decide_sizes(const ModelConfig& config,
                          const RuntimeOptions& options,
                          const CacheMemory& memory);

/// How experts are cut over the ranks of `options` where these do not say.
ExpertsChoice choose_experts(const ModelConfig& config,
                             const ModelSources& sources,
                             const RuntimeOptions& options);

/// Tokens of a request that a cache must hold, unasked, for the model to fit.
inline constexpr std::int64_t kUsefulTokens = 32'768;

/// The smallest number of ranks, of 1, 2, 4 … up to one a GPU, that the model can be cut over and
/// whose GPUs hold it: weights, reserve, and the cache that the options ask for, or else one of
/// kUsefulTokens. The largest that the model can be cut over where none holds it. `gpus`: bytes of
/// each, at least one.
std::int64_t fewest_ranks(const ModelConfig& config,
                          const ModelSources& sources,
                          const RuntimeOptions& options,
                          std::span<const std::int64_t> gpus);

/// How the options cut the model over ranks. Requires: they say how the experts are cut.
Shard shard_of(const RuntimeOptions& options);

}  // namespace koho
