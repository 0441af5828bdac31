// SPDX-License-Identifier: Apache-2.0
// e4m3 pages become f16, with the same bits in two places: upcast_pages_kernel() writes f16 rows to
// global memory, which attention_wgmma.cu then reads as it reads bf16 pages; or warpgroup 0 of that
// kernel upcasts from a ring of e4m3 values to the rings of K and V. A token whose v scale is NaN
// or infinite gets a V of NaN.
#pragma once

#include <cstdint>

#include "cuda/attention/attention_wgmma.cuh"
#include "cuda/attention/attention_wgmma_producer.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda {

/// Sixteen e4m3 values as f16.
__device__ __forceinline__ void upcast_chunk(std::uint32_t (&half)[8],
                                             const std::uint32_t (&fp8)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) e4m3_to_f16(fp8[i], half[2 * i], half[2 * i + 1]);
}

/// Stores a token's scale of K, and of V, as the softmax takes them; zero for tokens `beyond` the
/// context. put_value_scale() is false if the scale is NaN or infinite: then the token's V is to be
/// NaN.
__device__ __forceinline__ void put_key_scale(StepScales& scales,
                                              int token,
                                              bool beyond,
                                              float of_key) {
  scales.keys[token] = beyond ? 0.0F : of_key * (kLog2E / sqrtf(static_cast<float>(kWidth)));
}
__device__ __forceinline__ bool put_value_scale(StepScales& scales,
                                                int token,
                                                bool beyond,
                                                float of_value) {
  const bool finite = beyond || isfinite(of_value);
  if (beyond || !finite) of_value = 0.0F;
  scales.values[token] = of_value;
  const float largest = warp_max(of_value);
  if (token % 32 == 0) scales.largest[token / 32] = largest;
  return finite;
}

/// Upcasts a token's row from the e4m3 ring to a tile of K or V.
__device__ __forceinline__ void upcast_row(std::uint32_t from, std::uint32_t to) {
  const std::uint32_t swizzle = (threadIdx.x & 7U) << 4U;
#pragma unroll
  for (std::uint32_t chunk = 0; chunk < kWidth / 16; ++chunk) {
    std::uint32_t fp8[4];
    std::uint32_t half[8];
    load_shared(fp8, (from | swizzle) ^ (chunk << 4U));
    upcast_chunk(half, fp8);
    const std::uint32_t panel = to + chunk / 4 * kPanelBytes;
    store_shared((panel | swizzle) ^ (chunk % 4 * 2 << 4U), half[0], half[1], half[2], half[3]);
    store_shared((panel | swizzle) ^ ((chunk % 4 * 2 + 1) << 4U), half[4], half[5], half[6],
                 half[7]);
  }
}

/// The kernel's parameters, its shared memory (SharedPlan) and that memory's address, and the
/// barriers.
struct UpcastContext {
  const Attention& p;
  const WorkRange& range;
  const KvTensorMaps& maps;
  std::uint8_t* shared;
  std::uint32_t base;
  const PipelineBarriers& barriers;
};

/// Loads e4m3 pages into their ring. The first warp.
class Fp8Loader {
 public:
  __device__ __forceinline__ explicit Fp8Loader(const UpcastContext& given) : given_(given) {}

  /// Requests K (kind 0, with the scales of K and V) or V of a step.
  __device__ __forceinline__ void request(const PrefillTile& tile, int step, int kind) {
    const auto& [p, range, maps, shared, base, barriers] = given_;
    using Plan = SharedPlan<KvSource::fp8>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int pages = (tile.visible + kPageRows - 1) / kPageRows;
    const int first = step * kStepPages;
    if (kind == 0 && first % 32 == 0) {
      const std::int32_t* table = p.page_tables + tile.sequence * p.page_tables_stride + lane;
      if (first == 0 && lane < pages) upcoming_ = table[0];
      number_ = upcoming_;
      if (first + 32 + lane < pages) upcoming_ = table[first + 32];
    }
    const std::uint32_t barrier = barriers.fp8_full + 8 * at_.stage;
    if (lane == 0) mbarrier_wait(barriers.fp8_empty + 8 * at_.stage, at_.parity ^ 1);
    __syncwarp();
    const int here = min(pages - first, kStepPages);
    constexpr std::uint32_t kPageBytes = kPageRows * kWidth;
    constexpr std::uint32_t kPageScales = kPageRows * 4;
    if (lane == 0)
      mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(here) *
                                             (kPageBytes + (kind == 0 ? 2 * kPageScales : 0)));
    __syncwarp();
    const std::int64_t row =
        (static_cast<std::int64_t>(__shfl_sync(0xFFFFFFFFU, number_, (first + lane) % 32)) *
             p.kv_heads +
         tile.kv_head) *
        kPageRows;
    if (lane < here) {
      const auto page = static_cast<std::uint32_t>(lane);
      const std::uint64_t policy = evict_normal_policy();
      tma_load(base + Plan::kFp8Ring + at_.stage * kFp8TileBytes + page * kPageBytes,
               kind == 0 ? &maps.k : &maps.v, 0, static_cast<int>(row), barrier, policy);
      if (kind == 0) {
        const std::uint32_t to = base + Plan::kRawScales + at_.stage * Plan::kRawScaleBytes;
        bulk_copy(to + page * kPageScales, p.k_scales + row, kPageScales, barrier, policy);
        bulk_copy(to + (kStepPages + page) * kPageScales, p.v_scales + row, kPageScales, barrier,
                  policy);
      }
    }
    __syncwarp();
    at_.next();
  }

 private:
  const UpcastContext& given_;
  PipelineState<kFp8Stages> at_;
  std::int32_t number_ = 0;  // this lane's page number of 32, and (upcoming_) of the next 32
  std::int32_t upcoming_ = 0;
};

/// Keeps the rings of K and V full from e4m3 pages: the first warp loads these, and each thread
/// upcasts one token of a step. A warpgroup.
inline __device__ void upcast_pages(const UpcastContext& given) {
  const auto& [p, range, maps, shared, base, barriers] = given;
  using Plan = SharedPlan<KvSource::fp8>;
  const int thread = static_cast<int>(threadIdx.x);
  const bool loads = thread < 32;
  if (thread >= kWarpgroup - 32) zero_unowned_rows(p);
  auto* tiles = reinterpret_cast<PrefillTile*>(shared + Plan::kTiles);
  TileScheduler scheduler(p, range);
  PipelineState<kTileSlots> tile_at;
  Fp8Loader fp8(given);
  PipelineState<kFp8Stages> at;
  KvStage to;
  PipelineState<kScaleSlots> scale_at;
#pragma unroll 1
  for (;;) {
    if (loads) scheduler.next(tiles, barriers);
    mbarrier_wait(barriers.tile_full + 8 * tile_at.stage, tile_at.parity);
    const PrefillTile tile = tiles[tile_at.stage];
    mbarrier_arrive(barriers.tile_empty + 8 * tile_at.stage);
    tile_at.next();
    if (tile.steps == 0) break;
    if (loads) {
      fp8.request(tile, 0, 0);
      fp8.request(tile, 0, 1);
    }
#pragma unroll 1
    for (int step = 0; step < tile.steps; ++step) {
      const std::uint32_t row = static_cast<std::uint32_t>(thread) * 128U;
      const bool more = step + 1 < tile.steps;

      if (loads && more) fp8.request(tile, step + 1, 0);
      mbarrier_wait(barriers.fp8_full + 8 * at.stage, at.parity);
      mbarrier_wait(barriers.keys_empty + 8 * to.stage, to.parity ^ 1);
      const auto* raw = reinterpret_cast<const float*>(shared + Plan::kRawScales) +
                        at.stage * (2 * kStepTokens) + thread;
      auto& scales = reinterpret_cast<StepScales*>(shared + Plan::kScales)[scale_at.stage];
      const bool beyond = step * kStepTokens + thread >= tile.visible;
      put_key_scale(scales, thread, beyond, raw[0]);
      const bool finite = put_value_scale(scales, thread, beyond, raw[kStepTokens]);
      upcast_row(base + Plan::kFp8Ring + at.stage * kFp8TileBytes + row,
                 base + Plan::kKeys + to.stage * kTileBytes + row);
      fence_proxy_async_shared();
      mbarrier_arrive(barriers.fp8_empty + 8 * at.stage);
      mbarrier_arrive(barriers.keys_full + 8 * to.stage);
      at.next();

      if (loads && more) fp8.request(tile, step + 1, 1);
      mbarrier_wait(barriers.fp8_full + 8 * at.stage, at.parity);
      mbarrier_wait(barriers.values_empty + 8 * to.stage, to.parity ^ 1);
      const std::uint32_t values = base + Plan::kValues + to.stage * kTileBytes + row;
      if (finite) {
        upcast_row(base + Plan::kFp8Ring + at.stage * kFp8TileBytes + row, values);
      } else {
        constexpr std::uint32_t kNaNs = 0x7FFF7FFFU;
#pragma unroll 1
        for (std::uint32_t i = 0; i < kWidth / 8; ++i)
          store_shared(values + i / 8 * kPanelBytes + i % 8 * 16, kNaNs, kNaNs, kNaNs, kNaNs);
      }
      fence_proxy_async_shared();
      mbarrier_arrive(barriers.fp8_empty + 8 * at.stage);
      mbarrier_arrive(barriers.values_full + 8 * to.stage);
      at.next();
      to.next();
      scale_at.next();
    }
  }
  if (loads) scheduler.leave();
}

/// Upcasts K or V of one page and head of a sequence; tokens beyond the context become zero, up to
/// a whole step. Grid: (K and V of pages, heads, sequences). Contexts and page tables are older
/// than the previous kernel.
constexpr int kUpcastThreads = 128;
static __global__ void __launch_bounds__(kUpcastThreads)
    upcast_pages_kernel(const __grid_constant__ Attention p,
                        const __grid_constant__ WorkRange range) {
  const int thread = static_cast<int>(threadIdx.x);
  const int page = static_cast<int>(blockIdx.x) / 2;
  const bool values = blockIdx.x % 2 != 0;
  const int sequence = range.first_sequence + static_cast<int>(blockIdx.z);
  const int head = range.first_head + static_cast<int>(blockIdx.y);
  const int context = p.context_lengths[sequence];
  const int first = page * kPageRows;  // token
  std::int64_t from = 0;
  if (first < context)
    from = (static_cast<std::int64_t>(p.page_tables[sequence * p.page_tables_stride + page]) *
                p.kv_heads +
            head) *
           kPageRows;
  pdl_begin();
  if (first >= (context + kStepTokens - 1) / kStepTokens * kStepTokens) return;
  const std::int64_t head_index = static_cast<std::int64_t>(blockIdx.z) * range.heads + blockIdx.y;
  const std::int64_t to = head_index * range.tokens + first;
  const float* of_tokens = (values ? p.v_scales : p.k_scales) + from;
  const auto* fp8 = reinterpret_cast<const uint4*>(
      static_cast<const std::uint8_t*>(values ? p.v : p.k) + from * kWidth);
  constexpr int kChunks = kWidth / 16;
  constexpr int kEach = kPageRows * kChunks / kUpcastThreads;
  uint4 raw[kEach];
  bool finite[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int index = i * kUpcastThreads + thread;
    const bool beyond = first + index / kChunks >= context;
    raw[i] = beyond ? make_uint4(0, 0, 0, 0) : fp8[index];
    finite[i] = !values || beyond || isfinite(of_tokens[index / kChunks]);
  }
  if (thread < kPageRows) {
    const bool beyond = first + thread >= context;
    const float scale = beyond ? 0.0F : of_tokens[thread];
    StepScales& scales = range.scales[to / kStepTokens];
    if (values)
      put_value_scale(scales, first % kStepTokens + thread, beyond, scale);
    else
      put_key_scale(scales, first % kStepTokens + thread, beyond, scale);
  }
  auto* out = reinterpret_cast<uint4*>((values ? range.values : range.keys) + to * kWidth);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int index = i * kUpcastThreads + thread;
    constexpr std::uint32_t kNaNs = 0x7F7F7F7FU;
    if (!finite[i]) raw[i] = make_uint4(kNaNs, kNaNs, kNaNs, kNaNs);
    const std::uint32_t fp8_words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
    std::uint32_t half[8];
    upcast_chunk(half, fp8_words);
    out[2 * index] = make_uint4(half[0], half[1], half[2], half[3]);
    out[2 * index + 1] = make_uint4(half[4], half[5], half[6], half[7]);
  }
}

}  // namespace koho::cuda
