// SPDX-License-Identifier: Apache-2.0
// The unswapped decode GEMM's two producer warps: one copies weights, the other token rows, by TMA.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_decode_unswapped_sm90_plan.cuh"

namespace koho::cuda::unswapped {

/// Copies weights into the ring; one lane. It does not wait for the previous kernel, which writes
/// no weights. The CTAs of a cluster take turns to multicast a slot to all of them.
template <typename Plan, int kRows, int kSlotWidth, int kWeightMulticast>
__device__ __forceinline__ void copy_weights(const Gemm& p,
                                             const WeightTensorMaps& maps,
                                             const UnswappedCtaTile& cta,
                                             int k_tiles,
                                             UnswappedRing<Plan::kSlots>& ring) {
  const CUtensorMap* map[Plan::kPieces];
  int offset[Plan::kPieces];  // bytes in a slot
  int group[Plan::kPieces];
  int tile[Plan::kPieces];
  int done = 0;
#pragma unroll
  for (int i = 0; i < Plan::kPieces; ++i) {
    const int row = cta.row + done;
    const int rows = min(kTileRows - row % kTileRows, kRows - done);
    map[i] = rows > 0 ? &maps.of[rows / 8 - 1] : nullptr;
    offset[i] = done * kSlotWidth;
    group[i] = row % kTileRows / 8;
    tile[i] = min(row / kTileRows, p.tiles - 1);  // beyond the last tile, the last one again
    done += rows;
    if (rows > 0) prefetch_tensor_map(map[i]);
  }
  const std::uint64_t policy = evict_first_policy();
  int k_tile = 0;
  if constexpr (kWeightMulticast > 1) {
    k_tile = cta.rank;
    ring.slot = cta.rank;
  }
#pragma unroll 1
  for (; k_tile < k_tiles; k_tile += kWeightMulticast) {
    mbarrier_wait(ring.empty_barrier(), ring.phase ^ 1U);
#pragma unroll
    for (int i = 0; i < Plan::kPieces; ++i) {
      const std::uint32_t to =
          ring.slots + static_cast<std::uint32_t>(ring.slot * Plan::kSlot + offset[i]);
      if (map[i] == nullptr) continue;
      if constexpr (kWeightMulticast > 1)
        tma_load_multicast(to, map[i], k_tile * (kSlotWidth / kTileChunk), group[i], tile[i],
                           ring.full_barrier(), (1 << kWeightMulticast) - 1, policy);
      else
        tma_load(to, map[i], k_tile * (kSlotWidth / kTileChunk), group[i], tile[i],
                 ring.full_barrier(), policy);
    }
#pragma unroll
    for (int i = 0; i < kWeightMulticast; ++i) ring.advance();
  }
}

/// Copies token rows into the ring and announces their bytes and the weights'; one lane. Releases
/// the next kernel after slot fill `released_after`.
template <typename Plan, int kSlotWidth>
__device__ __forceinline__ void copy_tokens(const CUtensorMap& map,
                                            const UnswappedCtaTile& cta,
                                            const UnswappedLaunch& launch,
                                            int k_tiles,
                                            UnswappedRing<Plan::kSlots>& ring) {
  const auto bytes =
      static_cast<std::uint32_t>(Plan::kWeightBytes + launch.cta_tokens * kSlotWidth);
  const int released_after = min(launch.released_after, k_tiles - 1);
#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    mbarrier_wait(ring.empty_barrier(), ring.phase ^ 1U);
    mbarrier_arrive_expect_tx(ring.full_barrier(), bytes);
#pragma unroll
    for (int tma_box = 0; tma_box < kSlotWidth / kTmaBoxBytes; ++tma_box) {
      const std::uint32_t to =
          ring.slots + static_cast<std::uint32_t>(ring.slot * Plan::kSlot + Plan::kWeightBytes +
                                                  tma_box * kTmaBoxBytes * Plan::kTokens);
      const int column = k_tile * kSlotWidth + tma_box * kTmaBoxBytes;
      if constexpr (Plan::kTokenMulticast == 1)
        tma_load(to, &map, column, cta.token, ring.full_barrier());
      else if (k_tile % Plan::kTokenMulticast == multicast_rank<Plan>())
        tma_load_multicast(to, &map, column, cta.token, ring.full_barrier(),
                           (1 << Plan::kTokenMulticast) - 1);
    }
    ring.advance();
    if (k_tile == released_after) launch_dependent_grids();
  }
}

}  // namespace koho::cuda::unswapped
