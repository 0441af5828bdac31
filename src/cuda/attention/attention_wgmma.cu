// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper's wgmma: heads of 128, pages of bf16, or of e4m3 values, which are
// multiplied as f16. attention_reference.cu defines what it computes.
//
//   tiles    128 packed rows of a sequence and kv head, late ones first; a packed row is (token,
//            query head of the kv head), so K and V of a kv head serve all its query heads and stay
//            in L2
//   grid     persistent, a CTA an SM; the tile scheduler fetches the next tile from a counter some
//            steps before the last one's K and V are all requested
//   roles    warpgroup 0 produces: it schedules tiles, issues TMA loads of 128 tokens of K and of V
//            a step and of the next tile's queries, cleans V at the causal edge, and zeroes rows
//            that no sequence owns. Warpgroups 1 and 2 consume 64 rows each: while one multiplies,
//            the other does its softmax, where a token's k scale multiplies its score and its v
//            scale the weight
//   e4m3     upcast_pages_kernel() upcasts pages to f16 once for the many tiles of a prompt. For
//            few rows, or too little scratch memory, warpgroup 0 upcasts from one ring to another:
//            the same bits
//   step     the scores of the next 128 tokens are multiplied, then the last 128 weights by v;
//            meanwhile the softmax makes weights of those scores
//   shared   Q 32 KB, two stages of K and of V, 32 KB each; three slots of e4m3 values, 16 KB each
//   FLOPs    4 * rows * 128 * context, half of it under the causal edge: bound by the tensor cores
//   files    here the kernel and its launches; attention_wgmma.cuh what the roles share;
//            attention_wgmma_producer.cuh and attention_wgmma_upcast.cuh warpgroup 0;
//            attention_wgmma_consumer.cuh and attention_wgmma_softmax.cuh warpgroups 1 and 2
//
// A row's softmax takes the steps in order from token 0, and tokens beyond its position change
// nothing, so a row's bits do not depend on the chunk it came in. Measured times:
// docs/kernels/attention.md.
#include <algorithm>
#include <climits>

#include "cuda/attention/attention_wgmma.cuh"
#include "cuda/attention/attention_wgmma_consumer.cuh"
#include "cuda/attention/attention_wgmma_producer.cuh"
#include "cuda/attention/attention_wgmma_upcast.cuh"
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda {
namespace {

constexpr int kFewTiles = 2;  // of a head: up to so many, pages are not upcast beforehand
constexpr int kBlockBytes =
    16 << 20;  // K and V of the heads whose tiles alternate: they stay in L2

/// Lowers and raises a warpgroup's registers a thread.
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}

template <KvSource kSource>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ Attention p,
                           const __grid_constant__ WorkRange range,
                           const __grid_constant__ KvTensorMaps maps,
                           const __grid_constant__ CUtensorMap queries) {
  using Plan = SharedPlan<kSource>;
  constexpr bool kFp8 = kSource == KvSource::fp8;
  extern __shared__ std::uint8_t shared_bytes[];
  const std::uint32_t begin = shared_address(shared_bytes);
  const std::uint32_t base = (begin + 1023) / 1024 * 1024;
  std::uint8_t* shared = shared_bytes + (base - begin);
  PipelineBarriers barriers;
  barriers.keys_full = base + Plan::kBarriers;
  barriers.keys_empty = barriers.keys_full + 8 * kStages;
  barriers.values_full = barriers.keys_empty + 8 * kStages;
  barriers.values_empty = barriers.values_full + 8 * kStages;
  barriers.fp8_full = barriers.values_empty + 8 * kStages;
  barriers.fp8_empty = barriers.fp8_full + 8 * kFp8Stages;
  barriers.query_full = barriers.fp8_empty + 8 * kFp8Stages;
  barriers.query_empty = barriers.query_full + 8 * kConsumerWarpgroups;
  barriers.tile_full = barriers.query_empty + 8 * kConsumerWarpgroups;
  barriers.tile_empty = barriers.tile_full + 8 * kTileSlots;
  barriers.values_raw = barriers.tile_empty + 8 * kTileSlots;
  barriers.query_raw = barriers.values_raw + 8 * kStages;
  barriers.tile_requested = barriers.query_raw + 8 * kConsumerWarpgroups;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&maps.k);
    prefetch_tensor_map(&maps.v);
    if constexpr (!kFp8) prefetch_tensor_map(&queries);
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      mbarrier_init(barriers.keys_full + 8 * stage, kFp8 ? kWarpgroup : 1);
      mbarrier_init(barriers.values_full + 8 * stage, kFp8 ? kWarpgroup : 1);
      mbarrier_init(barriers.keys_empty + 8 * stage, kConsumerWarpgroups * kWarpgroup);
      mbarrier_init(barriers.values_empty + 8 * stage, kConsumerWarpgroups * kWarpgroup);
      mbarrier_init(barriers.values_raw + 8 * stage, 1);
    }
    for (std::uint32_t slot = 0; kFp8 && slot < kFp8Stages; ++slot) {
      mbarrier_init(barriers.fp8_full + 8 * slot, 1);
      mbarrier_init(barriers.fp8_empty + 8 * slot, kWarpgroup);
    }
    for (std::uint32_t half = 0; half < kConsumerWarpgroups; ++half) {
      mbarrier_init(barriers.query_raw + 8 * half, 1);
      mbarrier_init(barriers.query_full + 8 * half, kSource == KvSource::bf16 ? 1 : 32);
      mbarrier_init(barriers.query_empty + 8 * half, kWarpgroup);
    }
    mbarrier_init(barriers.tile_requested, 1);
    for (std::uint32_t slot = 0; slot < kTileSlots; ++slot) {
      mbarrier_init(barriers.tile_full + 8 * slot, 1);
      // The consumers arrive, and all of warpgroup 0 or all but the scheduling warp.
      mbarrier_init(barriers.tile_empty + 8 * slot,
                    kConsumerWarpgroups * kWarpgroup + (kFp8 ? kWarpgroup : kWarpgroup - 32));
    }
    fence_mbarrier_init();
  }
  if (threadIdx.x < kWidth) reinterpret_cast<int*>(shared + Plan::kBad)[threadIdx.x] = INT_MAX;
  __syncthreads();
  // Other roles wait each before it needs what the previous kernel writes; consumers wait for K.
  if constexpr (kFp8) pdl_begin();
  // NOTE: setmaxnreg comes before any value is live, and no role returns from within its loop over
  // tiles; else ptxas keeps the register count of the entry and spills.
  if (threadIdx.x < kWarpgroup) {
    warpgroup_reg_dealloc<kFp8 ? 72 : 40>();
    if constexpr (kFp8) {
      upcast_pages(UpcastContext{p, range, maps, shared, base, barriers});
    } else {
      const int warp = warp_index();
      if (warp == 0)
        produce<kSource>(p, range, maps, shared, base, barriers);
      else if (warp == 1)
        produce_queries<kSource, 0>(p, range, queries, shared, barriers);
      else if (warp == 2)
        produce_queries<kSource, 1>(p, range, queries, shared, barriers);
      else
        clean<kSource>(p, shared, barriers);
    }
  } else {
    warpgroup_reg_alloc<kFp8 ? 216 : 232>();
    consume<kSource>(p, shared, base, barriers);
  }
}

/// The most tiles of one kv head that a sequence of `query_max` rows has.
std::int64_t tiles_of_head(const Attention& p, int query_max) {
  const std::int64_t rows = static_cast<std::int64_t>(query_max) * (p.query_heads / p.kv_heads);
  return (rows + kRows - 1) / kRows;
}

template <KvSource kSource>
cudaError_t launch_tiles(const Attention& p, WorkRange range, int query_max, cudaStream_t stream) {
  constexpr int kShared = SharedPlan<kSource>::kBytes;
  const auto kernel = attention_wgmma_kernel<kSource>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (ready != cudaSuccess) return ready;
  KvTensorMaps maps;
  CUtensorMap queries{};
  cudaError_t made = cudaSuccess;
  if constexpr (kSource != KvSource::fp8)
    made = make_row_tensor_map(queries, p.q, p.tokens * p.query_heads, kWidth,
                               query_box_rows(p.query_heads / p.kv_heads));
  if (made != cudaSuccess) return made;
  if constexpr (kSource == KvSource::upcast) {
    const std::int64_t rows =
        static_cast<std::int64_t>(range.sequences) * range.heads * range.tokens;
    made = make_row_tensor_map(maps.k, range.keys, rows, kWidth, kStepTokens);
    if (made == cudaSuccess)
      made = make_row_tensor_map(maps.v, range.values, rows, kWidth, kStepTokens);
  } else {
    made = make_kv_tensor_maps(maps, p, kPageRows);
  }
  if (made != cudaSuccess) return made;
  const std::int64_t head_bytes =
      static_cast<std::int64_t>(std::max(p.context_max, 1)) * kWidth * 4;
  range.head_block =
      static_cast<int>(std::clamp<std::int64_t>(kBlockBytes / head_bytes, 1, range.heads));
  const std::int64_t tiles =
      static_cast<std::int64_t>(range.sequences) * range.heads * tiles_of_head(p, query_max);
  if (range.sequences == 1 && range.heads == p.kv_heads && range.head_block == range.heads)
    range.order = p.tile_order;
  const auto grid = static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, p.multiprocessors));
  return launch_kernel(kernel, {dim3(grid), dim3(kThreads), kShared}, stream, p, range, maps,
                       queries);
}

/// Bytes of K, V and scales of one sequence and kv head when upcast.
std::int64_t upcast_head_bytes(const Attention& p) {
  const std::int64_t steps = (std::max(p.context_max, 1) + kStepTokens - 1) / kStepTokens;
  return steps * (2 * kTileBytes + static_cast<std::int64_t>(sizeof(StepScales)));
}
bool upcasts_first(const Attention& p) {
  return p.k_scales != nullptr && tiles_of_head(p, p.query_max) > kFewTiles &&
         p.sequences > p.decodes;
}

/// How many sequences and kv heads are upcast and attended to in one launch.
struct UpcastLaunch {
  int sequences;
  int heads;
};
UpcastLaunch upcast_launch(const Attention& p, int first) {
  const std::int64_t heads_fit = p.upcast_bytes / upcast_head_bytes(p);
  return {
      static_cast<int>(std::clamp<std::int64_t>(heads_fit / p.kv_heads, 1, p.sequences - first)),
      static_cast<int>(std::min<std::int64_t>(heads_fit, p.kv_heads))};
}

/// Whether upcasting beforehand pays: the prompts fit one launch, or each of several launches has a
/// tile for every SM. (Memory is laid out for the longest context, so one long prompt makes all
/// large.)
bool upcast_pays(const Attention& p, int first) {
  const UpcastLaunch one = upcast_launch(p, first);
  if (one.sequences == p.sequences - first && one.heads == p.kv_heads) return true;
  return one.sequences * one.heads * tiles_of_head(p, p.query_max) >= p.multiprocessors;
}

/// Upcasts pages and attends to them, as many sequences and heads at a time as the memory holds.
cudaError_t launch_upcast(const Attention& p, int first, cudaStream_t stream) {
  const UpcastLaunch most = upcast_launch(p, first);
  for (int sequence = first; sequence < p.sequences; sequence += most.sequences) {
    for (int head = 0; head < p.kv_heads; head += most.heads) {
      WorkRange range{};
      range.first_sequence = sequence;
      range.sequences = std::min(most.sequences, p.sequences - sequence);
      range.first_head = head;
      range.heads = std::min(most.heads, p.kv_heads - head);
      range.tokens = (std::max(p.context_max, 1) + kStepTokens - 1) / kStepTokens * kStepTokens;
      const std::int64_t elements =
          static_cast<std::int64_t>(range.sequences) * range.heads * range.tokens * kWidth;
      range.keys = reinterpret_cast<std::uint16_t*>(p.upcast);
      range.values = range.keys + elements;
      range.scales = reinterpret_cast<StepScales*>(range.values + elements);
      const dim3 grid(static_cast<unsigned>(2 * range.tokens / kPageRows),
                      static_cast<unsigned>(range.heads), static_cast<unsigned>(range.sequences));
      const cudaError_t upcast =
          launch_kernel(upcast_pages_kernel, {grid, dim3(kUpcastThreads)}, stream, p, range);
      if (upcast != cudaSuccess) return upcast;
      const cudaError_t attended = launch_tiles<KvSource::upcast>(p, range, p.query_max, stream);
      if (attended != cudaSuccess) return attended;
    }
  }
  return cudaSuccess;
}

}  // namespace

bool attention_supports_wgmma(const Attention& p) {
  return p.width == kWidth && attention_supports_mma(p);
}

PrefillTiles attention_prompt_tiles(const Attention& p) {
  if (!attention_supports_wgmma(p) || p.sequences - p.decodes != 1) return {};
  return {.tiles = static_cast<int>(tiles_of_head(p, p.query_max)),
          .heads = p.kv_heads,
          .group = p.query_heads / p.kv_heads,
          .multiprocessors = p.multiprocessors};
}

std::int64_t attention_upcast_bytes(const Attention& p, std::int64_t most) {
  if (!attention_supports_wgmma(p) || !upcasts_first(p)) return 0;
  const std::int64_t head_index = upcast_head_bytes(p);
  const std::int64_t all = (p.sequences - p.decodes) * p.kv_heads * head_index;
  return std::min(all, std::max(most, head_index));
}

cudaError_t launch_attention_wgmma(const Attention& p, cudaStream_t stream) {
  WorkRange range{};
  range.first_sequence = p.decodes;
  range.sequences = p.sequences - p.decodes;
  range.heads = p.kv_heads;
  if (p.k_scales == nullptr) return launch_tiles<KvSource::bf16>(p, range, p.query_max, stream);
  if (!upcasts_first(p) || p.upcast_bytes < upcast_head_bytes(p) || !upcast_pays(p, p.decodes))
    return launch_tiles<KvSource::fp8>(p, range, p.query_max, stream);
  return launch_upcast(p, p.decodes, stream);
}

const void* kernel_of::attention_wgmma() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
