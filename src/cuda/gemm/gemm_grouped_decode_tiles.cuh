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

/// Looks up work tile `index`. `blocks` is the number of weight tiles, or of pairs. A linear
/// layer's token blocks of one weight tile follow each other, so that the second reads the tile
/// from L2.
__device__ __forceinline__ WorkTile
work_tile_at(const Gemm& p, int blocks, int index, int token_blocks, int tokens_per_block) {
  WorkTile work_tile{};
  if (p.single_ids != nullptr) {
    const int token_block = index / blocks;
    const int slot = token_block - (p.single_shared ? 1 : 0);
    const int expert = slot < 0 ? p.single_count : p.single_ids[slot] - p.single_first;
    const bool here = slot < 0 || (expert >= 0 && expert < p.single_count);
    work_tile = {expert, index % blocks, token_block, here ? 1 : 0};
  } else if (p.token_blocks != nullptr) {  // experts: tiles of one token block follow each other
    const ExpertTokenBlock token_block = p.token_blocks[index / blocks];
    std::uint32_t turn;  // block_of_expert, and above it blocks_of_expert
    static_assert(offsetof(ExpertTokenBlock, blocks_of_expert) ==
                  offsetof(ExpertTokenBlock, block_of_expert) + 2);
    std::memcpy(
        &turn,
        reinterpret_cast<const char*>(&token_block) + offsetof(ExpertTokenBlock, block_of_expert),
        sizeof turn);
    work_tile = {token_block.expert, index % blocks, token_block.first,
                 token_block.count,  turn,           index / blocks};
  } else {
    const int first = index % token_blocks * tokens_per_block;
    work_tile = {0, index / token_blocks, first, min(tokens_per_block, p.tokens - first)};
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
  if (!p.interleave_token_blocks || places <= 1) return;
  const int first = index / blocks - static_cast<int>(work_tile.turn & 0xFFFFU);
  const int among = index - first * blocks;  // work tiles of all these token blocks
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
