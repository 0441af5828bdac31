// SPDX-License-Identifier: Apache-2.0
// The grouped decode GEMM: shared memory, the work tiles and the ring of stages.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/arithmetic.h"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

constexpr int kWarpgroup = 128;
constexpr int kSumStride = 66;  // floats of one token's row of sums
constexpr int kWeightStage = kTileRows * kStageWidth;
constexpr int kBarrierBytes = 128;
/// kTiles: n8 tiles of tokens. kRowTiles: weight tiles of a work tile; a slot holds as many bytes
/// of weights with two, so half of the K.
template <int kTiles, int kRowTiles>
struct GroupedDecodePlan {
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kConsumers = kWarpgroup * kRowTiles;
  static constexpr int kProducers = kTiles == 8 ? 4 : kTiles == 4 ? 2 : 1;  // warps
  static constexpr int kThreads = kConsumers + 32 * kProducers;
  // NOTE: rounded so that stages begin at 128 bytes: elsewhere bulk copies and wgmma are slower.
  static constexpr int kSumBytes = kRowTiles > 1 ? 0 : round_up(4 * kTokens * kSumStride, 128);
  static constexpr int kSlotWidth = kStageWidth / kRowTiles;  // bytes of K
  static constexpr int kStage = kWeightStage + kTokens * kSlotWidth;
  // CTAs per multiprocessor, and the longest ring that lets them fit.
  static constexpr int kCtasPerSm = kTiles == 1 ? 3 : 2;
  static constexpr int kStages = kTiles == 2 || kRowTiles > 1 ? 5 : kTiles == 8 ? 3 : 4;
  static constexpr int kShared = kBarrierBytes + kSumBytes + kStages * kStage;
};

struct WorkTile {
  int expert;
  int tile;   // weight tile, or pair of them
  int first;  // permuted row
  int count;
  std::uint32_t turn;  // block_of_expert and blocks_of_expert, see take_interleaved_block()
  int block;           // index of the token block
};

__device__ __forceinline__ bool has_experts(const Gemm& p) {
  return p.token_blocks != nullptr || p.single_ids != nullptr;
}

__device__ __forceinline__ int num_token_blocks(const Gemm& p, int tokens_per_block) {
  if (p.single_ids != nullptr) return p.single_token_blocks;
  return p.token_blocks != nullptr ? *p.token_block_count
                                   : (p.tokens + tokens_per_block - 1) / tokens_per_block;
}

/// The row of x for a permuted row.
__device__ __forceinline__ int x_row_of(const Gemm& p, int row) {
  return p.single_row ? 0 : p.x_rows != nullptr ? p.x_rows[row] : row;
}

/// Work tiles of the shared expert, which come first: its token blocks take each weight tile, or
/// pair, in turn.
template <int kRowTiles>
__device__ __forceinline__ int num_shared_work_tiles(const Gemm& p) {
  return p.shared.token_blocks * ceil_div(p.shared.tiles, kRowTiles);
}
template <int kRowTiles>
__device__ __forceinline__ int num_work_tiles(const Gemm& p, int blocks, int token_blocks) {
  return (token_blocks - p.shared.token_blocks) * blocks + num_shared_work_tiles<kRowTiles>(p);
}
/// Weight tiles of a work tile's expert.
__device__ __forceinline__ int tiles_of(const Gemm& p, const WorkTile& work_tile) {
  return work_tile.block < p.shared.token_blocks ? p.shared.tiles : p.tiles;
}

/// Looks up work tile `index`. `blocks` is the number of weight tiles, or of pairs. A linear
/// layer's token blocks of one weight tile follow each other, so that the second reads the tile
/// from L2.
template <int kRowTiles>
__device__ __forceinline__ WorkTile
work_tile_at(const Gemm& p, int blocks, int index, int token_blocks, int tokens_per_block) {
  WorkTile work_tile{};
  if (!has_experts(p)) {
    const int first = index % token_blocks * tokens_per_block;
    return {0, index / token_blocks, first, min(tokens_per_block, p.tokens - first), 0, 0};
  }
  const int of_shared = num_shared_work_tiles<kRowTiles>(p);
  const int others = index - of_shared;
  const int token_block =
      others < 0 ? index % p.shared.token_blocks : p.shared.token_blocks + others / blocks;
  const int tile = others < 0 ? index / p.shared.token_blocks : others % blocks;
  if (p.single_ids != nullptr) {
    const int slot = token_block - (p.single_shared ? 1 : 0);
    const int expert = slot < 0 ? p.single_count : p.single_ids[slot] - p.single_first;
    const bool here = slot < 0 || (expert >= 0 && expert < p.single_count);
    work_tile = {expert, tile, token_block, here ? 1 : 0, 0, token_block};
  } else {  // tiles of one token block follow each other
    const ExpertTokenBlock listed = p.token_blocks[token_block];
    std::uint32_t turn;  // block_of_expert, and above it blocks_of_expert
    static_assert(offsetof(ExpertTokenBlock, blocks_of_expert) ==
                  offsetof(ExpertTokenBlock, block_of_expert) + 2);
    std::memcpy(
        &turn, reinterpret_cast<const char*>(&listed) + offsetof(ExpertTokenBlock, block_of_expert),
        sizeof turn);
    work_tile = {listed.expert, tile, listed.first, listed.count, turn, token_block};
  }
  return work_tile;
}

/// With p.interleave_token_blocks (one n8 tile), reorders an expert's work tiles so that its token
/// blocks take each weight tile in turn. NOTE: not in work_tile_at(), which prefetches the list
/// while the previous work tile is multiplied: to unpack `turn` there would wait for the load.
template <int kTiles>
__device__ __forceinline__ void take_interleaved_block(const Gemm& p,
                                                       int blocks,
                                                       int index,
                                                       WorkTile& work_tile) {
  if constexpr (kTiles > 1) return;
  const int places = static_cast<int>(work_tile.turn >> 16U);
  const int shared = p.shared.token_blocks;
  if (!p.interleave_token_blocks || places <= 1 || work_tile.block < shared) return;
  const int first = work_tile.block - static_cast<int>(work_tile.turn & 0xFFFFU);
  // Of the work tiles of all these token blocks.
  const int among = index - num_shared_work_tiles<1>(p) - (first - shared) * blocks;
  const ExpertTokenBlock token_block = p.token_blocks[first + among % places];
  work_tile.tile = among / places;
  work_tile.block = first + among % places;
  work_tile.first = token_block.first;
  work_tile.count = token_block.count;
}

/// The stages, of one slot each, of this CTA's split of K.
struct StageRange {
  int begin;
  int end;
};
template <int kSlotWidth>
__device__ __forceinline__ StageRange stage_range(const Gemm& p, int split) {
  const int stages = (p.width_bytes + kSlotWidth - 1) / kSlotWidth;
  return {stages * split / p.split_k, stages * (split + 1) / p.split_k};
}

struct Ring {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint8_t* stages;
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ Ring(std::uint8_t* shared, int sum_bytes)
      : full(shared_address(shared)),
        empty(shared_address(shared) + 64),
        stages(shared + kBarrierBytes + sum_bytes) {}
  template <int kStages>
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

}  // namespace koho::cuda
