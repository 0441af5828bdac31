// SPDX-License-Identifier: Apache-2.0
// The grouped decode GEMM's producer warps: weights by bulk copies, token rows by cp.async.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_grouped_decode_tiles.cuh"

namespace koho::cuda {

// In a step of one token, producers request weights slowly before they wait for the previous
// kernels, whose small reads would otherwise queue behind bulk copies. Cycles from one stage to the
// next (from the third on), and from the first L2 prefetch to the last.
constexpr int kPacedStageCycles = 3000;
constexpr int kPacedPrefetchCycles = 3000;

/// Where one producer lane copies token rows from: row lane % 8 of each of its warp's token tiles.
template <int kTiles, int kRowTiles>
struct TokenSource {
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  static constexpr int kWarps = Plan::kProducers;
  static constexpr int kEach = kTiles / kWarps;  // token tiles of a warp
  const std::uint8_t* rows[kEach];
  bool present[kEach];

  __device__ __forceinline__ void begin(const Gemm& p, const WorkTile& work_tile, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = (warp * kEach + i) * 8 + lane % 8;
      const int row = min(token, work_tile.count - 1) + work_tile.first;
      const std::int64_t x_row = x_row_of(p, row);
      rows[i] = p.x + x_row * p.x_stride_bytes + lane / 8 * kTileChunk;
      present[i] = token < work_tile.count;
    }
  }

  /// Copies this warp's rows of one stage into core matrices.
  __device__ __forceinline__ void copy(const Gemm& p,
                                       int warp,
                                       int stage,
                                       std::uint32_t destination) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = stage * Plan::kSlotWidth;
    const int left = p.x_bytes - begin - lane / 8 * kTileChunk;  // bytes from this lane's chunk on
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint32_t tile =
          destination + static_cast<std::uint32_t>((lane / 8 * kTiles + warp * kEach + i) * 128 +
                                                   lane % 8 * kTileChunk);
#pragma unroll
      for (int group = 0; group < Plan::kSlotWidth / kTileChunk / 4; ++group) {
        const int k = group * 4 * kTileChunk;
        const int bytes = min(max(left - k, 0), kTileChunk);
        // Columns of absent tokens keep what the ring held; nobody stores their results.
        if (present[i])
          cp_async_16(tile + static_cast<std::uint32_t>(group * 4 * kTiles * 128),
                      bytes > 0 ? rows[i] + begin + k : p.x, static_cast<std::uint32_t>(bytes));
      }
    }
  }
};

/// Prefetches p.l2_prefetch into L2, paced; one thread of a CTA.
__device__ __forceinline__ void prefetch_paced(const Gemm& p) {
  constexpr std::int64_t kPiece = 16 << 10;
  const std::int64_t step = gridDim.x * kPiece;
  std::int64_t pieces = 0;
#pragma unroll
  for (const Gemm::L2Prefetch& l2_prefetch : p.l2_prefetch)
    pieces += (l2_prefetch.bytes + step - 1) / step;
  const long long begin = clock64();
  int done = 0;
#pragma unroll
  for (const Gemm::L2Prefetch& l2_prefetch : p.l2_prefetch)
    for (std::int64_t at = blockIdx.x * kPiece; at < l2_prefetch.bytes; at += step) {
      if (done > 0) spin_until(begin + done * kPacedPrefetchCycles / (pieces - 1));
      prefetch_bulk(l2_prefetch.data + at,
                    static_cast<std::uint32_t>(min(l2_prefetch.bytes - at, kPiece)));
      ++done;
    }
}

/// Copies one stage of a work tile's weights into a slot; by one lane.
template <int kTiles, int kRowTiles>
__device__ __forceinline__ void copy_weights(const Gemm& p,
                                             const Ring& ring,
                                             const WorkTile& work_tile,
                                             int stage,
                                             int slot,
                                             std::int64_t tile_bytes,
                                             std::uint64_t policy) {
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  const int begin = stage * Plan::kSlotWidth;
  const auto bytes =
      static_cast<std::uint32_t>(min(Plan::kSlotWidth, p.width_bytes - begin) * kTileRows);
  const int tile = work_tile.tile * kRowTiles;
  const int present = min(kRowTiles, tiles_of(p, work_tile) - tile);
  const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
  mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(present) * bytes);
  const std::uint8_t* from =
      p.weight + (static_cast<std::int64_t>(work_tile.expert) * p.tiles + tile) * tile_bytes +
      static_cast<std::int64_t>(begin) * kTileRows;
  const std::uint32_t to = shared_address(ring.stages + slot * Plan::kStage);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
    if (i < present)
      bulk_copy(to + static_cast<std::uint32_t>(i * kTileRows * Plan::kSlotWidth),
                from + i * tile_bytes, bytes, barrier, policy);
}

/// A producer warp.
template <int kTiles, int kRowTiles>
__device__ void produce(const Gemm& p, Ring ring, int blocks, int token_blocks) {
  using Plan = GroupedDecodePlan<kTiles, kRowTiles>;
  const int warp = warp_index() - Plan::kConsumers / 32;
  const bool leads = warp == 0;  // one of its lanes copies weights
  const std::uint64_t policy = evict_first_policy();
  const int split = p.split_k > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int step = static_cast<int>(gridDim.x) / p.split_k;
  const StageRange range = stage_range<Plan::kSlotWidth>(p, split);
  const std::int64_t tile_bytes = static_cast<std::int64_t>(kTileRows) * p.width_bytes;
  const auto weights = [&](const WorkTile& work_tile, int stage, int slot) {
    copy_weights<kTiles, kRowTiles>(p, ring, work_tile, stage, slot, tile_bytes, policy);
  };
  // Prologue: where the first work tile is known before the previous kernel ends, its weights fill
  // the ring.
  int prologue = 0;
  const int first_index = static_cast<int>(blockIdx.x) / p.split_k;
  const auto start = [&](const WorkTile& work_tile) {
    if (work_tile.count == 0) return;
    prologue = min(Plan::kStages, range.end - range.begin);
    if (leads && elect_one()) {
      const bool slow = p.single_ids != nullptr && p.token_blocks_early;
      const long long begin = clock64();
#pragma unroll 1
      for (int i = 0; i < prologue; ++i) {
        if (slow && i >= 2) spin_until(begin + (i - 1) * kPacedStageCycles);
        weights(work_tile, range.begin + i, i);
      }
    }
  };
  const bool known = !has_experts(p) || p.token_blocks_early;
  int work_tiles = num_work_tiles<kRowTiles>(p, blocks, token_blocks);
  if (known) {
    if (first_index < work_tiles)
      start(work_tile_at<kRowTiles>(p, blocks, first_index, token_blocks, Plan::kTokens));
  } else if (p.first_block_expert >= 0 && first_index < num_shared_work_tiles<kRowTiles>(p)) {
    start({p.first_block_expert, first_index / p.shared.token_blocks, 0, 1, 0, 0});
  }
  if (leads && elect_one()) prefetch_paced(p);
  wait_on_dependent_grids();
  if (!known) {
    token_blocks = num_token_blocks(p, Plan::kTokens);
    work_tiles = num_work_tiles<kRowTiles>(p, blocks, token_blocks);
  }
  int done = 0;
  WorkTile next{};
  if (first_index < work_tiles)
    next = work_tile_at<kRowTiles>(p, blocks, first_index, token_blocks, Plan::kTokens);
  TokenSource<kTiles, kRowTiles> tokens;
  for (int index = first_index; index < work_tiles; index += step) {
    WorkTile work_tile = next;
    if (index + step < work_tiles)
      next = work_tile_at<kRowTiles>(p, blocks, index + step, token_blocks, Plan::kTokens);
    if (work_tile.count == 0) continue;
    take_interleaved_block<kTiles>(p, blocks, index, work_tile);
    for (int stage = range.begin; stage < range.end; ++stage, ++done) {
      const auto slot = static_cast<std::uint32_t>(ring.slot);
      mbarrier_wait(ring.empty + 8U * slot, ring.phase ^ 1U);
      if (leads && done >= prologue && elect_one()) weights(work_tile, stage, ring.slot);
      if (stage == range.begin)
        tokens.begin(p, work_tile, warp);  // while the weights are in flight
      tokens.copy(p, warp, stage,
                  shared_address(ring.stages + ring.slot * Plan::kStage + kWeightStage));
      cp_async_mbarrier_arrive(ring.full + 8U * slot);
      ring.advance<Plan::kStages>();
    }
  }
  cp_async_wait_group<0>();  // NOTE: a thread must not exit before its copies have arrived
}

}  // namespace koho::cuda
