// SPDX-License-Identifier: Apache-2.0
// The unswapped decode GEMM's mainloop under block scales.
#pragma once

#include <type_traits>

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
  const auto begin_stage = [&](int stage) {
    if (stage % 2 == 0) scales.take(p, row, token, stage * kBlocks);
    if (!Plan::kWhole || stage != next_split) return;
    ++split;
    next_split = stages * split / p.split_k;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[Plan::kWhole ? tile : 0][i] += sum[tile][i];
        sum[tile][i] = 0.0F;
      }
  };
  // Issues the MMAs of block `block` of a stage.
  const auto issue = [&](float(&partial)[kTiles][4], int block) {
    const int of_slot = block % kSlotBlocks;
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
    if (of_slot == kSlotBlocks - 1) ring.advance();
  };
  // Adds a block of a stage whose MMAs are complete.
  const auto add = [&](const float(&partial)[kTiles][4], int stage, int block) {
    if (block % kSlotBlocks == kSlotBlocks - 1) release();
    scales.add(sum, partial, stage % 2 * kBlocks + block);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)  // NOTE: as in the other mainloop's add()
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sum[tile][i]));
  };
  // Issues a block's MMAs before it waits for the previous block's, if registers have room.
  constexpr int kOverlapTilesMax = Plan::kTokens == 64 ? 10 : 7;
  constexpr bool kOverlapsMma = kSlotBlocks > 1 && kTiles <= kOverlapTilesMax;
  if constexpr (kOverlapsMma) {
    float partials[kBlocks][kTiles][4] = {};
    const auto run = [&](int stage, auto more) {  // NOTE: no condition on an issue
      begin_stage(stage);
      issue(partials[1], 1);
      wgmma_wait_group<1>();
      add(partials[0], stage, 0);
      if (more) {
        issue(partials[0], 0);
        wgmma_wait_group<1>();
      } else {
        wgmma_wait_group<0>();
      }
      add(partials[1], stage, 1);
    };
    issue(partials[0], 0);
    int stage = 0;
#pragma unroll 1
    while (stage + 1 < stages) run(stage++, std::true_type{});
    run(stage, std::false_type{});
  } else {  // another warpgroup or CTA multiplies while this one adds
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      begin_stage(stage);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        float partial[kTiles][4];
        issue(partial, block);
        wgmma_wait_group<0>();
        add(partial, stage, block);
      }
    }
  }
}

}  // namespace koho::cuda::unswapped
