// SPDX-License-Identifier: Apache-2.0
// The swap-AB decode GEMM's mainloop under block scales.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/block_scales.cuh"
#include "cuda/gemm/gemm_decode_swap_ab_sm90_plan.cuh"

namespace koho::cuda::swap_ab {

/// The ring as MMA warps read it.
struct RingReader {
  SwapAbRing ring;
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void wait_full() const {
    mbarrier_wait(ring.full + 8U * static_cast<std::uint32_t>(slot), phase);
  }
  __device__ __forceinline__ void release() const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty + 8U * static_cast<std::uint32_t>(slot));
  }
  __device__ __forceinline__ void advance() {
    if (++slot == ring.count) {
      slot = 0;
      phase ^= 1U;
    }
  }
};

/// Adds the CTA's K to `sum`: a chain of MMAs for each block of K. `weights` and `token_rows`
/// describe the operands of the ring's first slot, the warpgroup's tokens from n8 tile `first_tile`
/// on. Called after the wait for the previous kernel.
template <int kTileTokens, int kSlotWidth, int kEach>
__device__ __forceinline__ void multiply_blocks(const Gemm& p,
                                                const SwapAbCtaTile& cta,
                                                const SwapAbRing& ring,
                                                int first_tile,
                                                std::uint64_t weights,
                                                std::uint64_t token_rows,
                                                float (&sum)[kEach][4]) {
  using Plan = SwapAbPlan<kTileTokens, kSlotWidth>;
  constexpr int kSteps = kBlockWidth / kTileWidthStep;
  constexpr int kSlotBlocks = kSlotWidth / kBlockWidth;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto row_of = [&](int tile) {
    return min((first_tile + tile) * 8 + lane / 4, p.tokens - 1);
  };
  int block = cta.begin * (kStageWidth / kBlockWidth);
  BlockScales<kEach> scales;
  scales.begin_weights(p, cta.block, block);
  scales.begin_tokens(p, block, row_of);
  RingReader slots{ring};
  // MMA `i` of block `of_slot` of the slot.
  const auto multiply = [&](float(&partial)[kEach][4], int of_slot, int i) {
    const auto at = static_cast<std::uint32_t>(slots.slot * Plan::kSlot);
    wgmma<TileType::fp8_block, 8 * kEach>(
        &partial[0][0],
        advance_descriptor(advance_descriptor(weights, at),
                           static_cast<std::uint32_t>(of_slot * kSteps + i) * 2048U),
        advance_descriptor(
            advance_descriptor(token_rows, at),
            static_cast<std::uint32_t>(of_slot * kTmaBoxBytes * kTileTokens + i * kTileWidthStep)),
        i > 0 ? 1 : 0);
  };
  int of_four = 0;  // the slot's first block among those of `scales`
  const int end = min(cta.end * (kStageWidth / kBlockWidth), p.width_bytes / kBlockWidth);
  while (block + kSlotBlocks <= end) {
    if (of_four == 0) scales.take(p, block, row_of);
    float partial[kSlotBlocks][kEach][4];
    slots.wait_full();
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSlotBlocks; ++i) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) multiply(partial[i], i, k);
      wgmma_commit_group();
    }
    if constexpr (kSlotBlocks > 1) {
      wgmma_wait_group<1>();
      scales.add(sum, partial[0], of_four);
    }
    wgmma_wait_group<0>();
    slots.release();
    scales.add(sum, partial[kSlotBlocks - 1], of_four + kSlotBlocks - 1);
    block += kSlotBlocks;
    of_four = (of_four + kSlotBlocks) % 4;
    slots.advance();
  }
  const int left = min(cta.end * kStageWidth, p.width_bytes) - block * kBlockWidth;
  if (left <= 0) return;
  // The end of K, shorter than a slot: one MMA at a time.
  if (of_four == 0) scales.take(p, block, row_of);
  slots.wait_full();
  for (int i = 0; i * kBlockWidth < left; ++i) {
    float partial[kEach][4];
    const int steps = min(left / kTileWidthStep - i * kSteps, kSteps);
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      wgmma_fence();
      multiply(partial, i, k);
      wgmma_commit_group();
      wgmma_wait_group<0>();
    }
    scales.add(sum, partial, of_four + i);
  }
}

}  // namespace koho::cuda::swap_ab
