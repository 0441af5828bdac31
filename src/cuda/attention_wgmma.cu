// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper's wgmma: heads of 128, pages of bf16 or of e4m3 codes, which are
// multiplied as f16. What attention_prefill.cu computes, which defines it.
//
//   tiles    of 128 packed rows of a sequence and kv head, late ones first; a packed row is
//            (token, query head of the kv head), so K and V of a kv head serve all its query heads
//            and stay in L2
//   grid     a CTA a multiprocessor, which draws tiles: the next one some steps before it has asked
//            for all of the last one's K and V, so that it begins with both and its queries there
//   roles    warpgroup 0 draws, lets the copy engine bring 128 tokens of K and of V a step and the
//            next tile's queries, and makes V safe at the causal edge and rows zero that nobody
//            owns; warpgroups 1 and 2 have 64 rows each: while one multiplies, the other does its
//            softmax, where a token's k scale multiplies its score and its v scale the weight of v
//   codes    are widened to f16 once by a kernel before, which a prompt's many tiles read. Of few
//            rows, where memory is too little for launches that load the GPU, and of decoded rows
//            in the deterministic mode, warpgroup 0 widens them itself, from one ring to the other:
//            with the same bits
//   step     scores of the next 128 tokens are multiplied while the last 128 weights multiply v
//   shared   Q 32 KB, two stages of K and of V, 32 KB each; three slots of codes, 16 KB each
//   FLOPs    4 * rows * 128 * context, half of it under the causal edge: bound by the tensor cores
//   files    here the kernel and its launches; attention_wgmma.cuh what its roles share;
//            attention_wgmma_copy.cuh and attention_widen.cuh what warpgroup 0 does;
//            attention_wgmma_multiply.cuh and attention_wgmma_softmax.cuh warpgroups 1 and 2
//
// A row's softmax takes the steps in order from token 0, and tokens beyond its position change
// nothing: its bits do not depend on the chunk it came in. Numbers: docs/kernels/README.md.
#include <algorithm>
#include <climits>

#include "cuda/attention_wgmma.cuh"
#include "cuda/attention_wgmma_copy.cuh"
#include "cuda/attention_wgmma_multiply.cuh"
#include "cuda/attention_widen.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace koho::cuda {
namespace {

constexpr int kFewTiles = 2;           // of a head, for which codes are not widened before
constexpr int kBlockBytes = 16 << 20;  // of K and V whose heads take turns, to stay in L2

/// A warpgroup's registers a thread, down and up.
template <int kRegisters>
__device__ __forceinline__ void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}

template <Source kSource>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ Attention p,
                           const __grid_constant__ Part part,
                           const __grid_constant__ PageMaps maps,
                           const __grid_constant__ CUtensorMap queries) {
  using Plan = SharedPlan<kSource>;
  constexpr bool kCodes = kSource == Source::codes;
  extern __shared__ std::uint8_t shared_bytes[];
  const std::uint32_t begin = shared_address(shared_bytes);
  const std::uint32_t base = (begin + 1023) / 1024 * 1024;
  std::uint8_t* shared = shared_bytes + (base - begin);
  Rings rings;
  rings.keys_full = base + Plan::kBarriers;
  rings.keys_empty = rings.keys_full + 8 * kStages;
  rings.values_full = rings.keys_empty + 8 * kStages;
  rings.values_empty = rings.values_full + 8 * kStages;
  rings.codes_full = rings.values_empty + 8 * kStages;
  rings.codes_empty = rings.codes_full + 8 * kCodeSlots;
  rings.query_full = rings.codes_empty + 8 * kCodeSlots;
  rings.query_empty = rings.query_full + 8 * kMultipliers;
  rings.tile_full = rings.query_empty + 8 * kMultipliers;
  rings.tile_empty = rings.tile_full + 8 * kTileSlots;
  rings.values_raw = rings.tile_empty + 8 * kTileSlots;
  rings.query_raw = rings.values_raw + 8 * kStages;
  rings.tile_wanted = rings.query_raw + 8 * kMultipliers;
  if (threadIdx.x == 0) {
    tensor_map_prefetch(&maps.k);
    tensor_map_prefetch(&maps.v);
    if constexpr (!kCodes) tensor_map_prefetch(&queries);
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      mbarrier_init(rings.keys_full + 8 * stage, kCodes ? kWarpgroup : 1);
      mbarrier_init(rings.values_full + 8 * stage, kCodes ? kWarpgroup : 1);
      mbarrier_init(rings.keys_empty + 8 * stage, kMultipliers * kWarpgroup);
      mbarrier_init(rings.values_empty + 8 * stage, kMultipliers * kWarpgroup);
      mbarrier_init(rings.values_raw + 8 * stage, 1);
    }
    for (std::uint32_t slot = 0; kCodes && slot < kCodeSlots; ++slot) {
      mbarrier_init(rings.codes_full + 8 * slot, 1);
      mbarrier_init(rings.codes_empty + 8 * slot, kWarpgroup);
    }
    for (std::uint32_t half = 0; half < kMultipliers; ++half) {
      mbarrier_init(rings.query_raw + 8 * half, 1);
      mbarrier_init(rings.query_full + 8 * half, kSource == Source::bf16 ? 1 : 32);
      mbarrier_init(rings.query_empty + 8 * half, kWarpgroup);
    }
    mbarrier_init(rings.tile_wanted, 1);
    for (std::uint32_t slot = 0; slot < kTileSlots; ++slot) {
      mbarrier_init(rings.tile_full + 8 * slot, 1);
      // Read by the multipliers, and by all that widen or all but the warp that drew.
      mbarrier_init(rings.tile_empty + 8 * slot,
                    kMultipliers * kWarpgroup + (kCodes ? kWarpgroup : kWarpgroup - 32));
    }
    mbarrier_init_fence();
  }
  if (threadIdx.x < kWidth) reinterpret_cast<int*>(shared + Plan::kBad)[threadIdx.x] = INT_MAX;
  __syncthreads();
  // Elsewhere the roles wait, each before it needs what the kernel before writes; the multipliers
  // do by waiting for K.
  if constexpr (kCodes) grid_begin();
  // NOTE: registers are exchanged before anything else is alive, and no role returns from within
  // its loop over tiles, or the compiler keeps to the registers of the entry and spills.
  if (threadIdx.x < kWarpgroup) {
    registers_give<kCodes ? 72 : 40>();
    if constexpr (kCodes) {
      widen(Widening{p, part, maps, shared, base, rings});
    } else {
      const int warp = warp_index();
      if (warp == 0)
        produce<kSource>(p, part, maps, shared, base, rings);
      else if (warp == 1)
        produce_queries<kSource, 0>(p, part, queries, shared, rings);
      else if (warp == 2)
        produce_queries<kSource, 1>(p, part, queries, shared, rings);
      else
        clean<kSource>(p, shared, rings);
    }
  } else {
    registers_take<kCodes ? 216 : 232>();
    multiply<kSource>(p, shared, base, rings);
  }
}

/// Tiles that a sequence of so many query rows has at most, of one kv head.
std::int64_t tiles_of_head(const Attention& p, int query_max) {
  const std::int64_t rows = static_cast<std::int64_t>(query_max) * (p.query_heads / p.kv_heads);
  return (rows + kRows - 1) / kRows;
}

template <Source kSource>
cudaError_t launch_tiles(const Attention& p, Part part, int query_max, cudaStream_t stream) {
  constexpr int kShared = SharedPlan<kSource>::kBytes;
  const auto kernel = attention_wgmma_kernel<kSource>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (ready != cudaSuccess) return ready;
  PageMaps maps;
  CUtensorMap queries{};
  cudaError_t made = cudaSuccess;
  if constexpr (kSource != Source::codes)
    made = make_row_map(queries, p.q, p.tokens * p.query_heads, kWidth,
                        query_box_rows(p.query_heads / p.kv_heads));
  if (made != cudaSuccess) return made;
  if constexpr (kSource == Source::widened) {
    const std::int64_t rows = static_cast<std::int64_t>(part.sequences) * part.heads * part.tokens;
    made = make_row_map(maps.k, part.keys, rows, kWidth, kStepTokens);
    if (made == cudaSuccess) made = make_row_map(maps.v, part.values, rows, kWidth, kStepTokens);
  } else {
    made = make_page_maps(maps, p);
  }
  if (made != cudaSuccess) return made;
  const std::int64_t head_bytes =
      static_cast<std::int64_t>(std::max(p.context_max, 1)) * kWidth * 4;
  part.head_block =
      static_cast<int>(std::clamp<std::int64_t>(kBlockBytes / head_bytes, 1, part.heads));
  const std::int64_t tiles =
      static_cast<std::int64_t>(part.sequences) * part.heads * tiles_of_head(p, query_max);
  if (part.sequences == 1 && part.heads == p.kv_heads && part.head_block == part.heads)
    part.order = p.tile_order;
  const auto grid = static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, p.multiprocessors));
  return launch_kernel(kernel, {dim3(grid), dim3(kThreads), kShared}, stream, p, part, maps,
                       queries);
}

/// Bytes of one sequence and head, widened.
std::int64_t widened_unit_bytes(const Attention& p) {
  const std::int64_t steps = (std::max(p.context_max, 1) + kStepTokens - 1) / kStepTokens;
  return steps * (2 * kTileBytes + static_cast<std::int64_t>(sizeof(StepScales)));
}
bool widens_before(const Attention& p) {
  return p.k_scales != nullptr && tiles_of_head(p, p.query_max) > kFewTiles &&
         p.sequences > p.decodes + p.singles;
}

/// What of the prompts, from sequence `first` on, is widened and attended to at a time.
struct WidenedLaunch {
  int sequences;
  int heads;
};
WidenedLaunch widened_launch(const Attention& p, int first) {
  const std::int64_t units = p.widened_bytes / widened_unit_bytes(p);
  return {static_cast<int>(std::clamp<std::int64_t>(units / p.kv_heads, 1, p.sequences - first)),
          static_cast<int>(std::min<std::int64_t>(units, p.kv_heads))};
}

/// Whether the prompts fit one launch, or each of several has work for all multiprocessors: one
/// long context makes the memory of all sequences large.
bool widening_pays(const Attention& p, int first) {
  const WidenedLaunch one = widened_launch(p, first);
  if (one.sequences == p.sequences - first && one.heads == p.kv_heads) return true;
  return one.sequences * one.heads * tiles_of_head(p, p.query_max) >= p.multiprocessors;
}

/// Widens codes and attends to them, as many sequences and heads at a time as there is memory for.
cudaError_t launch_widened(const Attention& p, int first, cudaStream_t stream) {
  const WidenedLaunch most = widened_launch(p, first);
  for (int sequence = first; sequence < p.sequences; sequence += most.sequences) {
    for (int head = 0; head < p.kv_heads; head += most.heads) {
      Part part{};
      part.first_sequence = sequence;
      part.sequences = std::min(most.sequences, p.sequences - sequence);
      part.first_head = head;
      part.heads = std::min(most.heads, p.kv_heads - head);
      part.tokens = (std::max(p.context_max, 1) + kStepTokens - 1) / kStepTokens * kStepTokens;
      const std::int64_t elements =
          static_cast<std::int64_t>(part.sequences) * part.heads * part.tokens * kWidth;
      part.keys = reinterpret_cast<std::uint16_t*>(p.widened);
      part.values = part.keys + elements;
      part.scales = reinterpret_cast<StepScales*>(part.values + elements);
      const dim3 grid(static_cast<unsigned>(2 * part.tokens / kPageRows),
                      static_cast<unsigned>(part.heads), static_cast<unsigned>(part.sequences));
      const cudaError_t widened =
          launch_kernel(widen_pages_kernel, {grid, dim3(kWidenThreads)}, stream, p, part);
      if (widened != cudaSuccess) return widened;
      const cudaError_t attended = launch_tiles<Source::widened>(p, part, p.query_max, stream);
      if (attended != cudaSuccess) return attended;
    }
  }
  return cudaSuccess;
}

}  // namespace

bool attention_has_wgmma_form(const Attention& p) {
  return p.width == kWidth && attention_has_fast_form(p);
}

PromptTiles attention_prompt_tiles(const Attention& p) {
  if (!attention_has_wgmma_form(p) || p.sequences - p.decodes != 1) return {};
  return {.tiles = static_cast<int>(tiles_of_head(p, p.query_max)),
          .heads = p.kv_heads,
          .group = p.query_heads / p.kv_heads,
          .multiprocessors = p.multiprocessors};
}

std::int64_t attention_widened_bytes(const Attention& p, std::int64_t most) {
  if (!attention_has_wgmma_form(p) || !widens_before(p)) return 0;
  const std::int64_t unit = widened_unit_bytes(p);
  const std::int64_t all = (p.sequences - p.decodes - p.singles) * p.kv_heads * unit;
  return std::min(all, std::max(most, unit));
}

cudaError_t launch_attention_wgmma(const Attention& p, cudaStream_t stream) {
  Part part{};
  part.first_sequence = p.decodes;
  part.sequences = p.sequences - p.decodes;
  part.heads = p.kv_heads;
  if (p.k_scales == nullptr) return launch_tiles<Source::bf16>(p, part, p.query_max, stream);
  const int first = p.decodes + p.singles;
  if (!widens_before(p) || p.widened_bytes < widened_unit_bytes(p) || !widening_pays(p, first))
    return launch_tiles<Source::codes>(p, part, p.query_max, stream);
  if (p.singles > 0) {
    part.sequences = p.singles;
    const cudaError_t attended = launch_tiles<Source::codes>(p, part, 1, stream);
    if (attended != cudaSuccess) return attended;
  }
  return launch_widened(p, first, stream);
}

const void* kernel_of::attention_wgmma() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
