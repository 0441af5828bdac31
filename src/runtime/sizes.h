// SPDX-License-Identifier: Apache-2.0
// How much memory the KV cache gets, and what follows from it: the number of pages and the longest
// request. Pure arithmetic, except that it asks the device how much memory is free.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/runtime.h"

namespace koho {

/// Memory of one rank.
struct CacheMemory {
  std::int64_t bytes = 0;  // negative: not even the weights fit
  bool whole = false;      // it was asked for and is taken whole; else as much of it as is needed
};

/// What RuntimeOptions::kv_bytes or memory_share say. Else a quarter of the host's memory on the
/// CPU; on a GPU what weights and a reserve for activations, scratch memory and graphs leave of
/// what is free. Requires: no kv_pages. Errors: resource_exhausted (what was asked for holds no
/// page); those of the device.
Result<CacheMemory> cache_memory(const ModelConfig& config,
                                 const ModelSources& sources,
                                 const RuntimeOptions& options);

/// Without a context that was asked for, a request may have as many tokens as the model knows
/// positions, if the cache can hold so many; sequences share the cache and do not change that.
/// There are pages for 8,192 tokens of each sequence (or all of its context, where one was asked
/// for), and for one request of the full context, as far as `memory` goes; a context that was asked
/// for is given in any case.
RuntimeSizes decide_sizes(const ModelConfig& config,
                          const RuntimeOptions& options,
                          const CacheMemory& memory);

/// How the options cut the model over ranks.
Shard shard_of(const RuntimeOptions& options);

}  // namespace koho
