// SPDX-License-Identifier: Apache-2.0
// The swap-AB decode GEMM: shared memory, the part of the output that a CTA computes, and the ring
// of operand slots.
#pragma once

#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda::swap_ab {

constexpr int kRingSlotsMax = 16;  // as there are barriers
constexpr int kBarrierBytes = 384;
constexpr int kRowGroups = kTileRows / 16;  // of 16 rows, one per warp of a warpgroup

template <int kTileTokens, int kSlotWidth>
struct SwapAbPlan {
  static constexpr int kWarpgroups = kTileTokens > 64 ? 2 : 1;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreadsMax = kConsumers + 64;
  static constexpr int kTiles = kTileTokens / 8;
  static constexpr int kEach = kTiles / kWarpgroups;  // tiles of a warpgroup
  static constexpr int kWeightBytes = kTileRows * kSlotWidth;
  static constexpr int kSlot = kWeightBytes + kTileTokens * kSlotWidth;
  static constexpr int kScaleBytes = (2 * kTileRows + kTileTokens) * 4;
  // Where the other CTAs' sums arrive: beside the ring if they are small, else in the ring after
  // the mainloop.
  static constexpr bool kReuseRing = kTileTokens > 32;
  // How they travel: st.async of 16 bytes per lane if they are few, else one bulk copy per warp.
  static constexpr bool kBulkSums = kTileTokens > 16;
  static constexpr int sums_bytes(int ctas) {
    return ctas == 1 ? 0 : ctas * ((kRowGroups + ctas - 1) / ctas) * kTiles * 512;
  }
  static constexpr int ring_begin(int ctas) {
    const int before = kBarrierBytes + kScaleBytes + (kReuseRing ? 0 : sums_bytes(ctas));
    return (before + 1023) / 1024 * 1024;
  }
  static int shared_bytes(int ctas, int slots) {
    const int sums =
        (kReuseRing ? sums_bytes(ctas) : 0) + (kBulkSums ? kRowGroups * kTiles * 512 : 0);
    return 1024 + ring_begin(ctas) + std::max(slots * kSlot, ctas > 1 ? sums : 0);
  }
};

/// Groups of 16 rows that CTA `rank` of the cluster owns: first .. last - 1.
__device__ __forceinline__ int first_group(int rank, int ctas) {
  return (rank * kRowGroups + ctas - 1) / ctas;
}

/// What the launcher decides beside the template's parameters.
struct SwapAbLaunch {
  int slots;           // of the ring
  int producer_warps;  // 1, or 2 where the second copies the token rows
  bool releases_late;  // the next kernel may start when this one's first slot is full
};

/// The part of the output that a CTA computes.
struct SwapAbCtaTile {
  int block;  // of 64 weight rows
  int split;  // of K; the rank in the cluster
  int begin;  // stages of 256 bytes of K
  int end;

  __device__ __forceinline__ explicit SwapAbCtaTile(const Gemm& p) {
    // The rank from blockIdx, which ptxas knows to be warp-uniform.
    split = static_cast<int>(blockIdx.x) % p.split_k;
    block = static_cast<int>(blockIdx.x) / p.split_k;
    const int stages = (p.width_bytes + kStageWidth - 1) / kStageWidth;
    begin = stages * split / p.split_k;
    end = stages * (split + 1) / p.split_k;
  }
};

/// The ring and its barriers, as shared-memory addresses.
struct SwapAbRing {
  std::uint32_t full;  // barriers
  std::uint32_t empty;
  std::uint32_t slots;  // the first byte
  int count;
};

}  // namespace koho::cuda::swap_ab
