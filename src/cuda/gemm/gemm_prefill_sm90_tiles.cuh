// SPDX-License-Identifier: Apache-2.0
// The prefill GEMM's work: how shared memory is laid out, which work tiles a cluster takes, and the
// queue that hands them from the producer warp to the others.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/expert_tile.cuh"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/prefill_token_blocks.h"

namespace koho::cuda::prefill {

constexpr int kRowTiles = 2;
static_assert(kPrefillTiles == 2 * kRowTiles);
constexpr int kBlockRows = kRowTiles * kTileRows;
constexpr int kConsumers = 256;
constexpr int kThreads = 384;
/// Epilogue warps. Under block scales one warp brings scales instead.
template <TileType kType>
constexpr int kWriters = kType == TileType::fp8_block ? 2 : 3;
constexpr int kWeightBytes = kBlockRows * kTmaBoxBytes;
constexpr int kBarrierBytes = 1024;  // and the queue of work tiles
constexpr int kQueueTiles = 16;      // slots of WorkTileQueue
// Where the weights of a linear layer pass once, the producer prefetches the next block of them
// into L2 if K has at most so many bytes. Wider ones lost up to 3 % by it.
constexpr int kL2PrefetchWidthMax = 1536;

template <int kTileTokens>
struct PrefillPlan {
  static constexpr int kTiles = kTileTokens / 8;
  // The MMAs of a work tile have kLeast, kLeast + kPrefillTokenStep, … or kTileTokens columns.
  static constexpr int kLeast = prefill_width(kTileTokens, 0);
  static constexpr int kTokenBytes = kTileTokens * kTmaBoxBytes;
  static constexpr int kStage = kWeightBytes + kTokenBytes;
  static constexpr int kEpilogueBytes = kBlockRows * kTileTokens * 2;  // a work tile's bf16 output
  // Of two work tiles: token scales, weight row scales, biases.
  static constexpr int kScaleWords = kTileTokens + 2 * kBlockRows;
  static constexpr int kScales = 2 * kScaleWords * 4;
  static constexpr int kBefore =
      1024 + kBarrierBytes + kEpilogueBytes + kScales;  // alignment included
  static constexpr int kStages = (kSharedMax - kBefore) / kStage;
  static constexpr int kShared = kBefore + kStages * kStage;
};

/// Under block scales: a ring of the scales of 128 columns of K each, beside the ring of operands,
/// since these are free again before their sums are scaled.
template <int kTileTokens>
struct ScaleRingPlan {
  static constexpr int kSlots = 8;
  static constexpr int kWords = kTileTokens + kRowTiles * 2;  // of tokens; of each tile's halves
  static constexpr int kBytes = kSlots * kWords * 4;
};

struct PrefillWorkTile {
  int expert;
  int block;  // of 256 rows
  int first;
  int count;
};

struct PrefillTileScheduler {
  TokenBlocks slices;
  int token_blocks;  // of the experts' list, or of a linear layer's tokens
  int blocks;
  int work_tiles;

  /// Called by whole warps (shuffles).
  __device__ PrefillTileScheduler(const Gemm& p, const TokenBlocks& slices)
      : slices(slices),
        token_blocks(__shfl_sync(
            0xFFFFFFFFU, p.token_blocks != nullptr ? *p.token_block_count : slices.count, 0)),
        blocks((p.tiles + kPrefillTiles - 1) / kPrefillTiles),
        work_tiles(token_blocks * blocks) {}
  /// Linear layers: true if the weights are read once and the tokens repeatedly from L2, false for
  /// the opposite. The larger operand is read once.
  static __device__ __forceinline__ bool blocks_first(const Gemm& p) { return p.rows > p.tokens; }
  /// See kL2PrefetchWidthMax.
  static __device__ __forceinline__ bool prefetches_to_l2(const Gemm& p) {
    return p.token_blocks == nullptr && blocks_first(p) && p.width_bytes <= kL2PrefetchWidthMax;
  }
  /// Work tile `index` of a linear layer.
  __device__ __forceinline__ PrefillWorkTile slice(const Gemm& p, int index) const {
    const int one = blocks_first(p) ? token_blocks : blocks;
    const int turn = index / one;
    const int rest = index - turn * one;
    const int at = blocks_first(p) ? rest : turn;
    const int first = token_block_begin(p.tokens, slices, at);
    return {0, blocks_first(p) ? turn : rest, first,
            token_block_begin(p.tokens, slices, at + 1) - first};
  }
  __device__ __forceinline__ PrefillWorkTile work_tile(const Gemm& p, int index) const {
    if (p.token_blocks == nullptr) return slice(p, index);
    const auto [of, block] = expert_tile_at(p.token_blocks, index, blocks);
    return {of.expert, block, of.first, of.count};
  }
};

/// Which of the num_prefill_widths() MMA widths a work tile needs.
template <int kTileTokens>
__device__ __forceinline__ int width_index_of(const PrefillWorkTile& work_tile) {
  return max(work_tile.count - PrefillPlan<kTileTokens>::kLeast + kPrefillTokenStep - 1, 0) /
         kPrefillTokenStep;
}

/// Slot and phase of the ring.
template <int kStages>
struct PipelineState {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// Hands work tiles from the producer warp, which looks them up, to the MMA and epilogue warps, so
/// that neither waits for global memory between two work tiles. NOTE: consumers do not release a
/// slot. The producer is at most the ring's stages plus seven work tiles before the MMA warps,
/// and these are at most two work tiles before the epilogue warps.
struct WorkTileQueue {
  std::uint32_t work_tiles;  // kQueueTiles of 16 bytes
  std::uint32_t full;        // barriers

  __device__ __forceinline__ void put(int number, const PrefillWorkTile& work_tile) const {
    const auto at = static_cast<std::uint32_t>(number % kQueueTiles);
    store_shared(work_tiles + 16U * at, static_cast<std::uint32_t>(work_tile.expert),
                 static_cast<std::uint32_t>(work_tile.block),
                 static_cast<std::uint32_t>(work_tile.first),
                 static_cast<std::uint32_t>(work_tile.count));
    mbarrier_arrive(full + 8U * at);
  }
  __device__ __forceinline__ PrefillWorkTile get(int number) const {
    const auto at = static_cast<std::uint32_t>(number % kQueueTiles);
    mbarrier_wait(full + 8U * at, static_cast<std::uint32_t>(number / kQueueTiles % 2));
    std::uint32_t words[4];
    load_shared(words, work_tiles + 16U * at);
    return {static_cast<int>(words[0]), static_cast<int>(words[1]), static_cast<int>(words[2]),
            static_cast<int>(words[3])};
  }
};

/// The CTA's rank in its cluster, from blockIdx, which ptxas knows to be warp-uniform.
__device__ __forceinline__ int cta_rank() {
  return static_cast<int>(blockIdx.x) % 2;
}

}  // namespace koho::cuda::prefill
