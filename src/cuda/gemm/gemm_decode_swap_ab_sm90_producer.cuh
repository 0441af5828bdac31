// SPDX-License-Identifier: Apache-2.0
// The swap-AB decode GEMM's producer warps: weights by bulk copies, token rows by TMA.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/gemm_decode_swap_ab_sm90_plan.cuh"

namespace koho::cuda::swap_ab {

/// Copies a CTA's weights, token rows or both into the ring; one lane. Weights fill the ring before
/// the wait for the previous kernel, as no kernel writes them. The lane that copies token rows
/// releases the next kernel if `releases_late`.
template <int kTileTokens, int kSlotWidth, bool kWeights, bool kTokens>
__device__ __forceinline__ void produce_operands(const Gemm& p,
                                                 const CUtensorMap& x_map,
                                                 const SwapAbCtaTile& cta,
                                                 const SwapAbRing& ring,
                                                 bool releases_late,
                                                 std::uint64_t policy) {
  using Plan = SwapAbPlan<kTileTokens, kSlotWidth>;
  constexpr int kHalves = kStageWidth / kSlotWidth;
  const std::uint8_t* weights =
      p.weight + static_cast<std::int64_t>(cta.block) * kTileRows * p.width_bytes;
  const auto width_at = [&](int k_tile) {
    return min(kSlotWidth, p.width_bytes - k_tile * kSlotWidth);
  };
  const auto place = [&](int slot) {
    return ring.slots + static_cast<std::uint32_t>(slot * Plan::kSlot);
  };
  const auto copy_weights = [&](int k_tile, int slot) {
    const auto bytes = static_cast<std::uint32_t>(width_at(k_tile) * kTileRows);
    const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
    mbarrier_arrive_expect_tx(barrier, bytes);
    bulk_copy(place(slot), weights + static_cast<std::int64_t>(k_tile) * kSlotWidth * kTileRows,
              bytes, barrier, policy);
  };
  const auto copy_tokens = [&](int k_tile, int slot) {
    const int tma_boxes = (width_at(k_tile) + kTmaBoxBytes - 1) / kTmaBoxBytes;
    const std::uint32_t barrier = ring.full + 8U * static_cast<std::uint32_t>(slot);
    mbarrier_arrive_expect_tx(barrier,
                              static_cast<std::uint32_t>(tma_boxes * kTmaBoxBytes * p.tokens));
#pragma unroll
    for (int tma_box = 0; tma_box < kSlotWidth / kTmaBoxBytes; ++tma_box)
      if (tma_box < tma_boxes)
        tma_load(place(slot) + static_cast<std::uint32_t>(Plan::kWeightBytes +
                                                          tma_box * kTmaBoxBytes * kTileTokens),
                 &x_map, k_tile * kSlotWidth + tma_box * kTmaBoxBytes, 0, barrier);
  };
  const int begin = cta.begin * kHalves;
  const int end = min(cta.end * kHalves, (p.width_bytes + kSlotWidth - 1) / kSlotWidth);
  const int prologue = min(ring.count, end - begin);
  if constexpr (kTokens) prefetch_tensor_map(&x_map);
  if constexpr (kWeights) {
#pragma unroll 1
    for (int i = 0; i < prologue; ++i) copy_weights(begin + i, i);
  }
  if constexpr (kTokens) {
    wait_on_dependent_grids();
#pragma unroll 1
    for (int i = 0; i < prologue; ++i) copy_tokens(begin + i, i);
    if (releases_late) {
      mbarrier_wait(ring.full, 0);
      launch_dependent_grids();
    }
  }
  int slot = 0;
  std::uint32_t phase = 0;
  for (int k_tile = begin + prologue; k_tile < end; ++k_tile) {
    mbarrier_wait(ring.empty + 8U * static_cast<std::uint32_t>(slot), phase);
    if constexpr (kWeights) copy_weights(k_tile, slot);
    if constexpr (kTokens) copy_tokens(k_tile, slot);
    if (++slot == ring.count) {
      slot = 0;
      phase ^= 1U;
    }
  }
}

}  // namespace koho::cuda::swap_ab
