// SPDX-License-Identifier: Apache-2.0
// Bytes of weights, pages and reserves, and the pages that fit.
#include "runtime/sizes.h"

#include <algorithm>
#include <memory>

#include "base/arithmetic.h"
#include "base/check.h"
#include "model/check_cut.h"
#include "model/kv_cache.h"

namespace koho {
namespace {

constexpr std::int64_t kTokensOfASequence = 8192;  // that the cache has room for, unasked
constexpr std::int64_t kPagesMax = (std::int64_t{1} << 30) / kPageTokens;
constexpr std::int32_t kPrefillChunkCpu = 512;
constexpr std::int32_t kPrefillChunkCuda = 8192;
constexpr std::int64_t kReserveBytes = 6'000'000'000;  // of a GPU
constexpr double kGb = 1e9;

/// Ranks that share an attention layer: each holds a part of every page.
std::int64_t sharers_of(const RuntimeOptions& options) {
  return shard_of(options).of_tokens().ranks;
}

/// Bytes of a model's weights on each rank, `sharers` of which share an attention layer. A GPU may
/// keep linear layers outside the experts twice, in the layouts of decode and of prefill
/// (docs/kernels). On the CPU all ranks read the one mapping.
std::int64_t placed_bytes(const ModelSources& sources, const RuntimeOptions& options) {
  const bool cpu = options.device.kind == DeviceKind::cpu;
  const std::int64_t ranks = cpu ? 1 : options.ranks;
  const std::int64_t sharers = cpu ? 1 : sharers_of(options);
  const std::int64_t copies = cpu ? 1 : 2;
  std::int64_t bytes = bytes_of(sources.embedding) + bytes_of(sources.lm_head);
  for (const LayerSources& layer : sources.layers) {
    const AttentionSources& attention = layer.attention;
    bytes += copies *
             (bytes_of(attention.q) + bytes_of(attention.k) + bytes_of(attention.v) +
              bytes_of(attention.o)) /
             sharers;
    if (layer.mlp) bytes += copies * bytes_of(*layer.mlp) / ranks;
    if (!layer.moe) continue;
    bytes += bytes_of(layer.moe->router) + bytes_of(layer.moe->shared);
    for (const MlpSource& expert : layer.moe->experts) bytes += bytes_of(expert) / ranks;
  }
  return cpu ? bytes / options.ranks : bytes;
}

/// One page's bytes on every rank that holds it.
std::int64_t page_bytes(const ModelConfig& config, const RuntimeOptions& options) {
  return KvCache::page_bytes({.layers = config.num_hidden_layers,
                              .pages = 1,
                              .kv_heads = config.num_key_value_heads / sharers_of(options),
                              .width = config.head_dim,
                              .dtype = options.kv_dtype});
}

/// Limits::attention_tokens: multiplications of a token in all linear layers but the head, over
/// those of one token of its context; times four, since short chunks make poor use of the weights
/// that they read.
std::int32_t attention_tokens(const ModelConfig& config) {
  const std::int64_t attention =
      config.hidden_size * 2 * (config.query_width() + config.key_value_width());
  const std::int64_t dense = 3 * config.hidden_size * config.intermediate_size;
  const std::int64_t experts = 3 * config.hidden_size *
                               (config.num_experts_per_tok * config.moe_intermediate_size +
                                config.shared_intermediate_size());
  const std::int64_t moe_layers = config.num_moe_layers();
  const std::int64_t layers = config.num_hidden_layers;
  const std::int64_t linear =
      layers * attention + (layers - moe_layers) * dense + moe_layers * experts;
  const std::int64_t context = layers * 2 * config.query_width();
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(4 * linear / context, 1, 1 << 24));
}

}  // namespace

Shard shard_of(const RuntimeOptions& options) {
  KOHO_CHECK(options.experts.has_value());
  return {.ranks = options.ranks, .experts = *options.experts, .attention = options.attention};
}

Result<std::vector<RankMemory>> open_devices(const RuntimeOptions& options) {
  KOHO_TRY_ASSIGN(const std::int64_t total, device_memory_bytes(options.device));
  const auto ranks = static_cast<std::size_t>(options.ranks);
  std::vector<RankMemory> devices(ranks, {.total = total, .free = total});
  if (options.device.kind == DeviceKind::cpu) return devices;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    KOHO_TRY_ASSIGN(const std::unique_ptr<Backend> backend,
                    make_backend(options.device, static_cast<std::int64_t>(rank), options.ranks));
    KOHO_TRY_ASSIGN(const MemoryUse use, backend->memory_use());
    devices[rank].free = use.free_bytes;
  }
  return devices;
}

std::vector<RankMemory> memory_of_ranks(const RuntimeOptions& options,
                                        std::span<const RankMemory> devices) {
  std::vector<RankMemory> ranks(devices.begin(), devices.end());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::int64_t sharers = options.ranks;
    if (options.device.kind == DeviceKind::cuda) {
      const int device = device_of(options.device, static_cast<std::int64_t>(rank));
      sharers = 0;
      for (std::int64_t other = 0; other < options.ranks; ++other)
        sharers += device_of(options.device, other) == device ? 1 : 0;
    } else {
      ranks[rank].free = ranks[rank].total;  // the host's memory also holds what it can give back
    }
    ranks[rank].total /= sharers;
    ranks[rank].free /= sharers;
  }
  return ranks;
}

Result<CacheMemory> cache_memory(const ModelConfig& config,
                                 const ModelSources& sources,
                                 const RuntimeOptions& options,
                                 std::span<const RankMemory> devices) {
  const std::int64_t page = page_bytes(config, options);
  if (options.kv_bytes > 0) {
    if (options.kv_bytes < page)
      return make_error(ErrorCode::resource_exhausted,
                        "{} bytes for keys and values hold no page, which takes {} on every rank",
                        options.kv_bytes, page);
    return CacheMemory{.bytes = options.kv_bytes, .whole = true};
  }
  const std::vector<RankMemory> ranks = memory_of_ranks(options, devices);
  const RankMemory memory = *std::ranges::min_element(ranks, {}, &RankMemory::free);
  const bool cpu = options.device.kind == DeviceKind::cpu;
  const std::int64_t reserve = cpu ? 0 : kReserveBytes;
  const std::int64_t weights = placed_bytes(sources, options);
  if (options.memory_share > 0.0) {
    const auto share =
        static_cast<std::int64_t>(options.memory_share * static_cast<double>(memory.total));
    const std::int64_t left = share - (memory.total - memory.free) - weights - reserve;
    if (left < page)
      return make_error(
          ErrorCode::resource_exhausted,
          "{} of a rank's {:.3f} GB of memory leave no room for keys and values: others hold "
          "{:.3f} GB, weights take {:.3f} GB, activations and scratch memory {:.3f} GB",
          options.memory_share, static_cast<double>(memory.total) / kGb,
          static_cast<double>(memory.total - memory.free) / kGb, static_cast<double>(weights) / kGb,
          static_cast<double>(reserve) / kGb);
    return CacheMemory{.bytes = left, .whole = true};
  }
  if (cpu) return CacheMemory{.bytes = memory.total / 4};
  return CacheMemory{.bytes = memory.free - weights - reserve};
}

ExpertsChoice choose_experts(const ModelConfig& config,
                             const ModelSources& sources,
                             const RuntimeOptions& options) {
  return choose_experts(config, sources, {.ranks = options.ranks, .attention = options.attention},
                        options.sequences_max, options.device.kind == DeviceKind::cuda);
}

std::int64_t fewest_ranks(const ModelConfig& config,
                          const ModelSources& sources,
                          const RuntimeOptions& options,
                          std::span<const std::int64_t> gpus) {
  const std::int64_t smallest = *std::ranges::min_element(gpus);
  std::int64_t largest = 1;
  for (std::int64_t ranks = 1; ranks <= static_cast<std::int64_t>(gpus.size()); ranks *= 2) {
    RuntimeOptions cut = options;
    cut.ranks = ranks;
    cut.kv_pages = 0;
    cut.kv_bytes = 0;
    if (!cut.experts) cut.experts = choose_experts(config, sources, cut).layout;
    if (!check_cut(config, sources, shard_of(cut)).ok()) continue;
    largest = ranks;
    const std::int64_t tokens = options.context_max > 0
                                    ? options.context_max
                                    : std::min(kUsefulTokens, config.max_position_embeddings);
    const std::int64_t partitions = ranks / sharers_of(cut);
    const std::int64_t pages = options.kv_pages > 0
                                   ? ceil_div<std::int64_t>(options.kv_pages, partitions)
                                   : ceil_div<std::int64_t>(tokens, kPageTokens);
    const std::int64_t wanted =
        options.kv_bytes > 0 ? options.kv_bytes : pages * page_bytes(config, cut);
    const std::vector<RankMemory> devices(static_cast<std::size_t>(ranks),
                                          {.total = smallest, .free = smallest});
    const Result<CacheMemory> memory = cache_memory(config, sources, cut, devices);
    if (memory.ok() && memory->bytes >= wanted) return ranks;
  }
  return largest;
}

RuntimeSizes decide_sizes(const ModelConfig& config,
                          const RuntimeOptions& options,
                          const CacheMemory& memory) {
  const std::int64_t page = page_bytes(config, options);
  const std::int64_t partitions = options.ranks / sharers_of(options);
  const bool asked = options.context_max > 0;
  const std::int64_t context = asked ? options.context_max : config.max_position_embeddings;
  const std::int64_t pages_of_one = ceil_div<std::int64_t>(context, kPageTokens);
  const std::int64_t affordable = memory.bytes / page;
  std::int64_t pages_each = 0;  // of each partition; a sequence lies in one
  if (options.kv_pages > 0) {
    pages_each = ceil_div<std::int64_t>(options.kv_pages, partitions);
  } else if (memory.whole) {
    pages_each = std::min(affordable, kPagesMax / partitions);
  } else {
    const std::int64_t usual =
        asked ? pages_of_one : std::min(pages_of_one, kTokensOfASequence / kPageTokens);
    // Unasked, a CPU's cache holds one longest request: its memory is not the engine's alone.
    const std::int64_t sequences =
        options.device.kind == DeviceKind::cpu && !asked ? 1 : options.sequences_max;
    const std::int64_t wanted = std::max(ceil_div(sequences * usual, partitions), pages_of_one);
    pages_each = std::min(wanted, std::max(affordable, usual));
  }
  RuntimeSizes sizes;
  sizes.kv_pages = static_cast<std::int32_t>(pages_each * partitions);
  sizes.context_max = static_cast<std::int32_t>(std::min(context, pages_each * kPageTokens));
  sizes.context_bound = sizes.context_max < context ? ContextBound::cache
                        : asked                     ? ContextBound::asked
                                                    : ContextBound::model;
  sizes.kv_bytes = pages_each * page;
  sizes.kv_bytes_per_token = page / kPageTokens;
  const std::int32_t chunk = options.prefill_chunk > 0                 ? options.prefill_chunk
                             : options.device.kind == DeviceKind::cuda ? kPrefillChunkCuda
                                                                       : kPrefillChunkCpu;
  // Several prompts may share a step.
  sizes.prefill_chunk = static_cast<std::int32_t>(
      std::min<std::int64_t>(chunk, std::int64_t{options.sequences_max} * sizes.context_max));
  // Not on a GPU: what shorter chunks would cost its long prompts is not measured.
  if (options.device.kind == DeviceKind::cpu) sizes.attention_tokens = attention_tokens(config);
  return sizes;
}

}  // namespace koho
