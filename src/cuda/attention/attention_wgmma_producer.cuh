// SPDX-License-Identifier: Apache-2.0
// Warpgroup 0 of attention_wgmma.cu where pages are bf16 or upcast already: one warp loads K and V,
// two load queries (the first also schedules tiles), one cleans V at the causal edge. Where
// warpgroup 0 upcasts e4m3 pages (attention_wgmma_upcast.cuh), the consumers load their queries and
// clean V by functions of this file.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/attention/attention_wgmma.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda {

/// Keeps the rings of K and V full. One warp. NOTE: parameters stand one by one, since as a struct
/// they change the kernel's machine code.
template <KvSource kSource>
__device__ void produce(const Attention& p,
                        const WorkRange& range,
                        const KvTensorMaps& maps,
                        std::uint8_t* shared,
                        std::uint32_t base,
                        const PipelineBarriers& barriers) {
  using Plan = SharedPlan<kSource>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_normal_policy();
  const auto* tiles = reinterpret_cast<const PrefillTile*>(shared + Plan::kTiles);
  PipelineState<kTileSlots> tile_at;
  KvStage at;
  PipelineState<kScaleSlots> scales;
  // Tile and page numbers are older than the previous kernel; the pages' contents are not.
  bool waited = false;
  const auto wait = [&] {
    if (!waited) pdl_begin();
    waited = true;
  };
#pragma unroll 1
  for (;;) {
    mbarrier_wait(barriers.tile_full + 8 * tile_at.stage, tile_at.parity);
    const PrefillTile tile = tiles[tile_at.stage];
    mbarrier_arrive(barriers.tile_empty + 8 * tile_at.stage);
    tile_at.next();
    if (tile.steps == 0) break;
    const std::int32_t* table = p.page_tables + tile.sequence * p.page_tables_stride;
    const int pages = (tile.visible + kPageRows - 1) / kPageRows;
    const int head_index =
        (tile.sequence - range.first_sequence) * range.heads + tile.kv_head - range.first_head;
    std::int32_t number = 0;
#pragma unroll 1
    for (int step = 0; step < tile.steps; ++step) {
      const std::uint32_t keys = base + Plan::kKeys + at.stage * kTileBytes;
      const std::uint32_t values = base + Plan::kValues + at.stage * kTileBytes;
      const std::uint32_t keys_full = barriers.keys_full + 8 * at.stage;
      const std::uint32_t values_full =
          (step < edge_step(tile) ? barriers.values_full : barriers.values_raw) + 8 * at.stage;
      if constexpr (kSource == KvSource::upcast) {
        const int row = head_index * range.tokens + step * kStepTokens;
        const auto bring = [&](const CUtensorMap& map, std::uint32_t to, std::uint32_t barrier) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel)
            tma_load(to + static_cast<std::uint32_t>(panel * kPanelBytes), &map,
                     panel * (kWidth / kPanels), row, barrier, policy);
        };
        wait();
        if (elect_one()) {
          mbarrier_wait(barriers.keys_empty + 8 * at.stage, at.parity ^ 1);
          mbarrier_arrive_expect_tx(keys_full, kTileBytes + sizeof(StepScales));
          bring(maps.k, keys, keys_full);
          bulk_copy(base + Plan::kScales + scales.stage * sizeof(StepScales),
                    range.scales + row / kStepTokens, sizeof(StepScales), keys_full, policy);
          mbarrier_wait(barriers.values_empty + 8 * at.stage, at.parity ^ 1);
          mbarrier_arrive_expect_tx(values_full, kTileBytes);
          bring(maps.v, values, values_full);
        }
      } else {
        const int first = step * kStepPages;
        if (first % 32 == 0 && first + lane < pages) number = table[first + lane];
        std::int32_t numbers[kStepPages];
#pragma unroll
        for (int i = 0; i < kStepPages; ++i)
          numbers[i] = __shfl_sync(0xFFFFFFFFU, number, (first + i) % 32);
        const int here = min(pages - first, kStepPages);
        const auto bring = [&](const CUtensorMap& map, std::uint32_t to, std::uint32_t barrier) {
          mbarrier_arrive_expect_tx(barrier,
                                    static_cast<std::uint32_t>(here * kPanels * kBoxBytes));
          for (int i = 0; i < here; ++i) {
            const auto row = static_cast<int>(
                (static_cast<std::int64_t>(numbers[i]) * p.kv_heads + tile.kv_head) * kPageRows);
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel)
              tma_load(to + static_cast<std::uint32_t>(panel * kPanelBytes + i * kBoxBytes), &map,
                       panel * (kWidth / kPanels), row, barrier, policy);
          }
        };
        wait();
        if (elect_one()) {
          mbarrier_wait(barriers.keys_empty + 8 * at.stage, at.parity ^ 1);
          bring(maps.k, keys, keys_full);
          mbarrier_wait(barriers.values_empty + 8 * at.stage, at.parity ^ 1);
          bring(maps.v, values, values_full);
        }
      }
      __syncwarp();
      at.next();
      scales.next();
      if (step == max(tile.steps - kSchedulePrefetchSteps, 0) && lane == 0)
        mbarrier_arrive(barriers.tile_requested);
    }
  }
}

/// Packed row `packed` of a tile's queries in global memory; null beyond the sequence.
__device__ __forceinline__ const Bf16* query_row(const Attention& p,
                                                 const PrefillTile& tile,
                                                 int packed) {
  if (packed >= tile.rows_total) return nullptr;
  return p.q + (static_cast<std::int64_t>(tile.start + packed / tile.group) * p.query_heads +
                tile.kv_head * tile.group + packed % tile.group) *
                   kWidth;
}
__device__ __forceinline__ uint4 to_f16(const uint4& raw) {
  return make_uint4(bf16_to_f16(raw.x), bf16_to_f16(raw.y), bf16_to_f16(raw.z), bf16_to_f16(raw.w));
}

/// The index of packed row `packed` of a tile among all (token, query head) rows.
__device__ __forceinline__ int query_place(const Attention& p,
                                           const PrefillTile& tile,
                                           int packed) {
  return (tile.start + packed / tile.group) * p.query_heads + tile.kv_head * tile.group +
         packed % tile.group;
}

/// Loads each tile's 64 query rows of a consumer warpgroup once it has released the last ones; over
/// upcast pages it makes them f16. Rows beyond the sequence hold whatever lies there, and nobody
/// reads their results. One warp for each consumer warpgroup. The first also schedules tiles, early
/// enough that nobody waits.
template <KvSource kSource, int kIndex>
__device__ void produce_queries(const Attention& p,
                                const WorkRange& range,
                                const CUtensorMap& map,
                                std::uint8_t* shared,
                                const PipelineBarriers& barriers) {
  using Plan = SharedPlan<kSource>;
  constexpr bool kF16 = kSource == KvSource::upcast;
  constexpr bool kSchedules = kIndex == 0;
  constexpr int kHalf = kRows / kConsumerWarpgroups;
  constexpr int kFirst = kIndex * kHalf;
  auto* tiles = reinterpret_cast<PrefillTile*>(shared + Plan::kTiles);
  std::uint8_t* query = shared + Plan::kQuery;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr std::uint32_t half = 8 * kIndex;
  const std::uint32_t to = shared_address(query) + kFirst * 128;
  const std::uint32_t arrived = (kF16 ? barriers.query_raw : barriers.query_full) + half;
  const std::uint64_t policy = evict_normal_policy();
  std::uint32_t parity = 0;
  TileScheduler scheduler(p, range);
  PipelineState<kTileSlots> at;
  if constexpr (kSchedules)
    scheduler.next(tiles, barriers);  // reads nothing of the previous kernel
  pdl_begin();
#pragma unroll 1
  for (;;) {
    mbarrier_wait(barriers.tile_full + 8 * at.stage, at.parity);
    const PrefillTile tile = tiles[at.stage];
    if constexpr (!kSchedules) mbarrier_arrive(barriers.tile_empty + 8 * at.stage);
    at.next();
    if (tile.steps == 0) break;
    const int first = tile.first_row + kFirst;
#pragma unroll
    for (int i = 0; i < kHalf / 32; ++i) {
      const Bf16* row = query_row(p, tile, first + i * 32 + lane);
      if (row != nullptr) prefetch_bulk(row, kWidth * 2);
    }
    // Each lane finds its first TMA box's rows before the wait; groups of 12 have no second.
    const int box_rows = query_box_rows(tile.group);
    const int first_query_row = query_place(p, tile, first + lane / kPanels * box_rows);
    mbarrier_wait(barriers.query_empty + half, parity ^ 1);
    if (lane == 0) mbarrier_arrive_expect_tx(arrived, kHalf * kWidth * 2);
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < kHalf / box_rows * kPanels; i += 32) {
      const int panel = i % kPanels;
      const int begin = i / kPanels * box_rows;
      tma_load(to + static_cast<std::uint32_t>(panel * kPanelBytes + begin * 128), &map,
               panel * (kWidth / kPanels),
               i == lane ? first_query_row : query_place(p, tile, first + begin), arrived, policy);
    }
    if constexpr (kF16) {
      mbarrier_wait(arrived, parity);
      const int chunk = lane % 16;
#pragma unroll 4
      for (int row = kFirst + lane / 16; row < kFirst + kHalf; row += 2) {
        auto* own = reinterpret_cast<uint4*>(query + swizzled_offset(row, chunk));
        *own = to_f16(*own);
      }
      fence_proxy_async_shared();
      mbarrier_arrive(barriers.query_full + half);
    }
    if constexpr (kSchedules) {
      mbarrier_wait(barriers.tile_requested, parity);
      scheduler.next(tiles, barriers);
    }
    parity ^= 1;
  }
  if constexpr (kSchedules) scheduler.leave();
}

/// Loads the 64 query rows of a consumer warpgroup as f16. That warpgroup, where warpgroup 0
/// upcasts e4m3 pages.
inline __device__ void load_queries(
    const Attention& p, const PrefillTile& tile, std::uint8_t* query, int warpgroup, int thread) {
  constexpr int kChunks = kWidth * 2 / 16;
  named_barrier_sync(kQueryBarrier + warpgroup,
                     kWarpgroup);  // the last queries have been multiplied
#pragma unroll 2
  for (int i = 0; i < kRows / kConsumerWarpgroups * kChunks / kWarpgroup; ++i) {
    const int index = i * kWarpgroup + thread;
    const int row = warpgroup * (kRows / kConsumerWarpgroups) + index / kChunks;
    const int chunk = index % kChunks;
    const Bf16* from = query_row(p, tile, tile.first_row + row);
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (from != nullptr) raw = to_f16(*reinterpret_cast<const uint4*>(from + chunk * 8));
    *reinterpret_cast<uint4*>(query + swizzled_offset(row, chunk)) = raw;
  }
  fence_proxy_async_shared();
  named_barrier_sync(kQueryBarrier + warpgroup, kWarpgroup);
}

/// A step of V at the causal edge.
struct EdgeStep {
  std::uint8_t* values;
  int* bad;  // [kWidth], see clean_values()
  int first_token;
};

/// Makes a step of V at the causal edge safe to multiply. Tokens that no row of the tile sees
/// become zero. So do NaNs and infinities of tokens that only some rows see, since a weight of 0
/// does not undo them in the others; bad[column] becomes the first such token, for the rows that do
/// see it, after a call of `found`. `kThreads` threads.
template <bool kF16, int kThreads, typename Found>
__device__ __forceinline__ void clean_values(const EdgeStep& step,
                                             const PrefillTile& tile,
                                             int thread,
                                             Found found) {
  const auto [values, bad, first_token] = step;
  constexpr std::uint32_t kExponent = kF16 ? 0x7C00U : 0x7F80U;
  const auto suspect = [](std::uint32_t word) {
    return (word & kExponent) == kExponent || (word & kExponent << 16U) == kExponent << 16U;
  };
  constexpr int kChunks = kWidth / 8;
  const int visible = min(tile.visible - first_token, kStepTokens);
  for (int panel = 0; panel < kPanels; ++panel)  // the swizzle stays within a row
#pragma unroll 4
    for (int at = visible * 128 + thread * 16; at < kPanelBytes; at += kThreads * 16)
      *reinterpret_cast<uint4*>(values + panel * kPanelBytes + at) = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int i = max(tile.least - first_token, 0) * kChunks + thread; i < visible * kChunks;
       i += kThreads) {
    const int token = i / kChunks;
    auto* chunk = reinterpret_cast<uint4*>(values + swizzled_offset(token, i % kChunks));
    const uint4 raw = *chunk;
    if (!suspect(raw.x) && !suspect(raw.y) && !suspect(raw.z) && !suspect(raw.w)) continue;
    auto* each = reinterpret_cast<std::uint16_t*>(chunk);
#pragma unroll 1
    for (int j = 0; j < 8; ++j) {
      if ((each[j] & kExponent) != kExponent) continue;
      each[j] = 0;
      found();
      atomicMin(&bad[i % kChunks * 8 + j], first_token + token);
    }
  }
  fence_proxy_async_shared();
}

/// Zeroes rows of p.out that attend to nothing: those after all sequences, and those of empty
/// sequences that are no decodes. One warp of each CTA.
inline __device__ void zero_unowned_rows(const Attention& p) {
  const auto clear = [&](std::int64_t row) {
    const int width = p.query_heads * kWidth;
    for (int column = static_cast<int>(threadIdx.x) % 32 * 8; column < width; column += 32 * 8)
      *reinterpret_cast<uint4*>(p.out + row * width + column) = make_uint4(0, 0, 0, 0);
  };
  for (std::int64_t row = p.query_starts[p.sequences] + static_cast<std::int64_t>(blockIdx.x);
       row < p.tokens; row += gridDim.x)
    clear(row);
  for (int sequence = p.decodes + static_cast<int>(blockIdx.x); sequence < p.sequences;
       sequence += static_cast<int>(gridDim.x)) {
    if (p.context_lengths[sequence] != 0) continue;
    for (int row = p.query_starts[sequence]; row < p.query_starts[sequence + 1]; ++row) clear(row);
  }
}

/// Zeroes rows that no sequence owns, then cleans V at the causal edge of each tile. One warp.
template <KvSource kSource>
__device__ void clean(const Attention& p, std::uint8_t* shared, const PipelineBarriers& barriers) {
  using Plan = SharedPlan<kSource>;
  pdl_begin();
  zero_unowned_rows(p);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto* tiles = reinterpret_cast<PrefillTile*>(shared + Plan::kTiles);
  PipelineState<kTileSlots> at;
  std::uint32_t before = 0;    // steps of earlier tiles
  std::uint32_t parities = 0;  // of values_raw, a bit a stage
#pragma unroll 1
  for (;;) {
    mbarrier_wait(barriers.tile_full + 8 * at.stage, at.parity);
    PrefillTile& tile = tiles[at.stage];
    const int steps = tile.steps;
    if (steps == 0) break;
    int* bad = reinterpret_cast<int*>(shared + Plan::kBad) + at.stage * kWidth;
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) bad[i * 32 + lane] = INT_MAX;
    __syncwarp();
#pragma unroll 1
    for (int step = edge_step(tile); step < steps; ++step) {
      const std::uint32_t stage = (before + static_cast<std::uint32_t>(step)) % kStages;
      mbarrier_wait(barriers.values_raw + 8 * stage, parities >> stage & 1U);
      parities ^= 1U << stage;
      clean_values<kSource == KvSource::upcast, 32>(
          EdgeStep{shared + Plan::kValues + stage * kTileBytes, bad, step * kStepTokens}, tile,
          lane, [&] { *const_cast<volatile int*>(&tile.any_bad) = 1; });
      __syncwarp();
      if (lane == 0) mbarrier_arrive(barriers.values_full + 8 * stage);
    }
    before += static_cast<std::uint32_t>(steps);
    mbarrier_arrive(barriers.tile_empty + 8 * at.stage);
    at.next();
  }
}

}  // namespace koho::cuda
