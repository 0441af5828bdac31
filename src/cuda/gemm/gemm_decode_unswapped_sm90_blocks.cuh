// SPDX-License-Identifier: Apache-2.0
// The unswapped decode GEMM's mainloop under block scales.
#pragma once

#include "base/arithmetic.h"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/block_scales.cuh"
#include "cuda/gemm/gemm_decode_unswapped_sm90_plan.cuh"

namespace koho::cuda::unswapped {

/// Adds all of K of the weight rows from `row` on to `sum`, and of the splits before the last one
/// to `total`: a chain of MMAs for each block of K. `weights` and `rows` describe the operands of
/// the ring's first slot, `token` is the lane's first. `release` releases the oldest slot.
template <typename Plan, int kSlotWidth, typename Release, int kTiles, int kTotalTiles>
__device__ __forceinline__ void multiply_blocks(const Gemm& p,
                                                int row,
                                                int token,
                                                std::uint64_t weights,
                                                std::uint64_t rows,
                                                UnswappedRing<Plan::kSlots>& ring,
                                                const Release& release,
                                                float (&sum)[kTiles][4],
                                                float (&total)[kTotalTiles][4]) {
  constexpr int kSteps = kBlockWidth / kTileWidthStep;
  constexpr int kBlocks = kStageWidth / kBlockWidth;  // of a stage
  constexpr int kSlotBlocks = kSlotWidth / kBlockWidth;
  UnswappedBlockScales<kTiles> scales;
  scales.begin_weights(p, row);
  scales.begin_tokens(p, token);
  const int stages = ceil_div(p.width_bytes, kStageWidth);  // the last one may be short
  int split = 1;
  int next_split = Plan::kWhole ? stages / p.split_k : 0;  // stage where the next split begins
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    const int of_four = stage % 2 * kBlocks;  // the stage's first block among those of `scales`
    if (of_four == 0) scales.take(p, row, token, stage * kBlocks);
    if (Plan::kWhole && stage == next_split) {
      ++split;
      next_split = stages * split / p.split_k;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[Plan::kWhole ? tile : 0][i] += sum[tile][i];
          sum[tile][i] = 0.0F;
        }
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int of_slot = block % kSlotBlocks;
      float partial[kTiles][4];
      if (of_slot == 0) mbarrier_wait(ring.full_barrier(), ring.phase);
      const auto at = static_cast<std::uint32_t>(ring.slot * Plan::kSlot);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        wgmma<TileType::fp8_block, Plan::kGroupRows>(
            &partial[0][0],
            advance_descriptor(advance_descriptor(rows, at),
                               static_cast<std::uint32_t>(of_slot * kTmaBoxBytes * Plan::kTokens +
                                                          i * kTileWidthStep)),
            advance_descriptor(advance_descriptor(weights, at),
                               static_cast<std::uint32_t>(of_slot * kSteps + i) * 256U),
            i > 0 ? 1 : 0);
      wgmma_commit_group();
      wgmma_wait_group<0>();
      if (of_slot == kSlotBlocks - 1) {
        release();
        ring.advance();
      }
      scales.add(sum, partial, of_four + block);
    }
  }
}

}  // namespace koho::cuda::unswapped
