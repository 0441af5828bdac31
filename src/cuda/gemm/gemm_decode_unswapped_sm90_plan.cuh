// SPDX-License-Identifier: Apache-2.0
// The unswapped decode GEMM: shared memory, the part of the output that a CTA computes, and the
// ring of operand slots.
#pragma once

#include <algorithm>

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/decode_gemm_config.h"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda::unswapped {

constexpr int kRingSlotsMax = 16;  // as there are barriers
constexpr int kBarrierBytes = 256;
constexpr int kSharedOfTwo = 113 * 1024;  // of each of two CTAs on a multiprocessor
constexpr int kTileSums = 512;            // bytes of a warp's sums: 8 weight rows by 16 tokens
constexpr int kWarpTokens = 16;
template <TileType kType, int kRows, int kTileTokens, int kSlotWidth, int kCtasPerSm>
struct UnswappedPlan {
  static constexpr int kTokens = kTileTokens;
  // Two warpgroups with the same 64 tokens have half of the rows each.
  static constexpr int kWarpgroups = kType == TileType::bf16 ? 2 : kTileTokens / 64;
  static constexpr int kRowGroups = 64 * kWarpgroups / kTileTokens;
  static constexpr int kGroupRows = kRows / kRowGroups;
  static constexpr int kWarps = 4 * kWarpgroups;  // that multiply
  static constexpr int kThreads = 32 * kWarps + 64;
  static constexpr int kTiles = kGroupRows / 8;  // of a warpgroup
  // Whether a CTA may take several blocks of rows in turn.
  static constexpr bool kPersistent =
      is_persistent({.slot_width = kSlotWidth, .ctas_per_sm = kCtasPerSm});
  static constexpr int kBlocks = kPersistent ? 2 : 1;
  // Replays the swap-AB kernel's split-K, one split after the other.
  static constexpr bool kWhole = sums_splits(
      {kType, {.columns = kTileTokens, .slot_width = kSlotWidth, .ctas_per_sm = kCtasPerSm}});
  // Tiles that a CTA's rows may touch.
  static constexpr int kPieces =
      (kRows + 2 * kTileRows - 1 - unswapped_row_step(kRows)) / kTileRows;
  static constexpr int kWeightBytes = kRows * kSlotWidth;
  static constexpr int kSlot = kWeightBytes + kTokens * kSlotWidth;
  // Scales and biases of two blocks: a warp may write the next block's while others read this
  // one's.
  static constexpr int kScales = 2 * kRows;
  static constexpr int kRingBegin = (kBarrierBytes + kBlocks * kScales * 4 + 1023) / 1024 * 1024;
  // CTAs of a cluster, with different rows, that multicast tokens to each other.
  static constexpr int kTokenMulticast = kType == TileType::bf16 ? 2 : 1;
  // bf16: a warp's output of half of the rows; 16 lanes write 128 bytes without bank conflicts.
  static constexpr bool kStaged = kType == TileType::bf16;
  static constexpr int kStagedRows = kRows / 2;
  static_assert(!kStaged || kStagedRows % 16 == 8);
  static constexpr int kStagedBytes = kStaged ? kWarps * kWarpTokens * kStagedRows * 4 : 0;
  static constexpr int kBesideRing = 1024 + kRingBegin + kStagedBytes;
  static constexpr int kSharedBytes = kCtasPerSm == 1 ? kSharedMax : kSharedOfTwo;
  static constexpr int kSlots = std::min(kRingSlotsMax, (kSharedBytes - kBesideRing) / kSlot);
  static constexpr int kLaunchBytes = kBesideRing + kSlots * kSlot;
  // Output that is not stored in vectors passes through the ring.
  static_assert(kWarps * kTiles * kTileSums <= kSlots * kSlot);
  static_assert(kWeightBytes % 1024 == 0 && kSlot % 1024 == 0);  // TMA boxes of tokens are swizzled
  static_assert(2 * kRingSlotsMax * 8 <= kBarrierBytes);
};

/// What the launcher decides beside the template's parameters.
struct UnswappedLaunch {
  int token_blocks;    // of the tokens along the grid's x: 1 or 2; the others lie along its y
  int cta_tokens;      // tokens of a token_block
  bool vector_stores;  // 16 bytes at a time: bf16 output of fp8, f32 output of bf16
  bool evict_first;    // bf16: the output leaves L2 first
  int released_after;  // slot fill after which the next kernel may start; -1: at once
};

// Logits of more bytes than half of L2 are stored with evict_first: what cannot stay is better
// written at once.
constexpr std::int64_t kEvictFirstBytes = 25LL << 20;

/// When the next kernel may start: once most of this one's operands are requested. Earlier, its
/// CTAs would take idle multiprocessors, and compete for bandwidth with this kernel's copies. At
/// once if its CTAs are to run beside this one's (kCtasPerSm 2), or if CTAs are persistent.
template <typename Plan>
int released_after(int resident, int token_blocks) {
  if (Plan::kPersistent || (resident > 1 && token_blocks == 1)) return -1;
  return resident > 1 ? Plan::kSlots - 1 : Plan::kSlots;
}

/// The part of the output that a CTA computes.
struct UnswappedCtaTile {
  int row;    // first weight row
  int rank;   // among the CTAs of neighbouring token blocks; in the cluster, with kWeightMulticast
  int token;  // the first one

  /// Token blocks overlap if tokens do not divide evenly, so that no TMA box has rows beyond the
  /// tensor.
  template <int kRows, int kWeightMulticast>
  __device__ __forceinline__ static UnswappedCtaTile of(const Gemm& p,
                                                        const UnswappedLaunch& launch) {
    const int block = static_cast<int>(blockIdx.x);
    UnswappedCtaTile cta;
    // The rank from blockIdx, which ptxas knows to be warp-uniform.
    cta.rank = kWeightMulticast > 1 ? block % kWeightMulticast : block & (launch.token_blocks - 1);
    cta.row =
        (kWeightMulticast > 1 ? block / kWeightMulticast : block >> (launch.token_blocks - 1)) *
        kRows;
    const int token_block = static_cast<int>(blockIdx.y) * launch.token_blocks + cta.rank;
    cta.token = min(token_block * launch.cta_tokens, p.tokens - launch.cta_tokens);
    return cta;
  }
};

/// The CTA's rank among those that multicast tokens to each other.
template <typename Plan>
__device__ __forceinline__ int multicast_rank() {
  return static_cast<int>(blockIdx.x) % Plan::kTokenMulticast;
}

/// The ring's barriers and slots, and where one of its users is.
template <int kCount>
struct UnswappedRing {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint32_t slots;  // the first byte
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t full_barrier() const {
    return full + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ std::uint32_t empty_barrier() const {
    return empty + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ void advance() {
    if (++slot == kCount) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// An MMA thread's sums: of tile i of 8 weight rows, tokens lane / 4 (+ 8 for j >= 2) of its
/// warp's 16 and weight rows 8 * i + lane % 4 * 2 + j % 2.
template <int kTiles>
using Sums = float[kTiles][4];

}  // namespace koho::cuda::unswapped
