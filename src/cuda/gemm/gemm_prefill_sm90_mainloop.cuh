// SPDX-License-Identifier: Apache-2.0
// The prefill GEMM's MMA warpgroups: each multiplies 64 weight rows by a work tile's tokens, and
// hands the sums to the epilogue while the next work tile's first MMAs run.
#pragma once

#include <type_traits>

#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/gemm_prefill_sm90_epilogue.cuh"
#include "cuda/gemm/gemm_prefill_sm90_scales.cuh"
#include "cuda/gemm/gemm_prefill_sm90_tiles.cuh"

namespace koho::cuda::prefill {

/// Calls `run` with the MMA width `width_index` as a constant. The widest ones, which prompts have,
/// are compared first.
template <int kTileTokens, int kIndex = num_prefill_widths(kTileTokens) - 1, typename Run>
__device__ __forceinline__ void with_columns(int width_index, const Run& run) {
  if (kIndex == 0 || width_index == kIndex)
    run(std::integral_constant<int, prefill_width(kTileTokens, kIndex)>{});
  else if constexpr (kIndex > 0)
    with_columns<kTileTokens, kIndex - 1>(width_index, run);
}

template <int kSumTiles, int kTiles>
__device__ __forceinline__ void add_sums(float (&sum)[kSumTiles][4],
                                         const float (&partial)[kTiles][4]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[tile][i] += partial[tile][i];
}

template <TileType kType, int kTileTokens, bool kSplitK>
__device__ void mma_warpgroups(const Gemm& p,
                               const PrefillTileScheduler& work,
                               const WorkTileQueue& list,
                               std::uint32_t full,
                               std::uint32_t empty,
                               std::uint32_t ring,
                               [[maybe_unused]] ScaleRing<kTileTokens> scale_ring,
                               const EpilogueBuffer<kTileTokens>& buffer) {
  using Plan = PrefillPlan<kTileTokens>;
  const int warp = warp_index();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = cta_rank();
  constexpr int kStageSums = kType == TileType::fp8_block ? 2 : 1;
  const int stages_all = (p.width_bytes + kStageWidth - 1) / kStageWidth;
  const auto release = [&](int slot) {
    const std::uint32_t barrier = empty + 8U * static_cast<std::uint32_t>(slot);
    if (lane < 2)
      mbarrier_arrive_remote(map_shared_rank(barrier, static_cast<std::uint32_t>(lane)));
  };
  const int group = warp / 4;
  std::uint32_t phase = 0;
  const std::uint64_t weights = core_matrix_descriptor(
      ring + static_cast<std::uint32_t>(group * kTileRows * kTmaBoxBytes), 1024U);
  const std::uint64_t tokens = swizzle128_descriptor(ring + kWeightBytes);
  PipelineState<Plan::kStages> at;
  int number = 0;
  const int stride = static_cast<int>(gridDim.x) / 2;
  float sum[Plan::kTiles][4] = {};
  // A work tile's sums go to the epilogue buffer while the next one's first MMAs run, so the loop
  // has one turn more. NOTE: that code must be in the loop: behind it, ptxas keeps to the registers
  // at entry.
  FinishedTile finished{};
  bool pending = false;
  for (int index = static_cast<int>(blockIdx.x) / 2; index - stride < work.work_tiles;
       index += stride, ++number) {
    const bool more = index < work.work_tiles;
    const auto finish = [&](const auto& halfway) {
      store_to_epilogue_buffer<kType, kTileTokens>(p, finished, sum, buffer, phase, halfway);
      pending = false;
      phase ^= 1U;
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] = 0.0F;
    };
    const int whole = p.width_bytes / (kStageWidth / kStageSums);
    const int left = p.width_bytes - whole * (kStageWidth / kStageSums);
    // Only MMAs into a fresh accumulator may start before the previous sums have left their
    // registers.
    if (pending && (kChained<kType> || !more || (whole == 0 && left != kTmaBoxBytes)))
      finish([] {});
    if (!more) continue;
    const PrefillWorkTile work_tile = list.get(number);
    __syncwarp();  // all lanes have read it before two of them release slots
    const int row = (work_tile.block * 2 + rank) * kBlockRows + warp * 16;
    float total[kSplitK ? Plan::kTiles : 1][4] = {};
    int split = 1;
    // Where a split begins, the sums of the previous split go to the total.
    const auto begin_split = [&](int stage) {
      if (!kSplitK || stage != stages_all * split / p.split_k) return;
      ++split;
      if (stage == 0) return;  // the sums may still be the previous work tile's
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[kSplitK ? tile : 0][i] += sum[tile][i];
          sum[tile][i] = 0.0F;
        }
    };
    const auto add = [&](const auto& partial) {
      if constexpr (kStageSums > 1)
        add_block(scale_ring, group, sum, partial);
      else
        add_sums(sum, partial);
    };
    const auto slot_full = [&] {
      mbarrier_wait(full + 8U * static_cast<std::uint32_t>(at.slot), at.phase);
    };
    const auto step = [&]<int kTiles>(float(&partial)[kTiles][4], int i, bool accumulate) {
      const auto slot = static_cast<std::uint32_t>(at.slot * Plan::kStage);
      wgmma<kType, 8 * kTiles>(&partial[0][0],
                               advance_descriptor(advance_descriptor(weights, slot),
                                                  static_cast<std::uint32_t>(i) * 2048U),
                               advance_descriptor(advance_descriptor(tokens, slot),
                                                  static_cast<std::uint32_t>(i * kTileWidthStep)),
                               accumulate ? 1 : 0);
    };
    // Multiplies a stage, or the half stage that K may end with, into a fresh accumulator.
    const auto run = [&](auto columns, auto halves) {
      constexpr int kHalves = decltype(halves)::value;
      float partial[decltype(columns)::value / 8][4];
      const int first_slot = at.slot;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (half > 0) at.advance();
        slot_full();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTmaBoxBytes / kTileWidthStep; ++i) step(partial, i, half > 0 || i > 0);
        wgmma_commit_group();
      }
      // NOTE: before the epilogue ends, else the producer would wait for all of it.
      const auto release_first = [&] {
        if constexpr (kHalves > 1) {
          wgmma_wait_group<1>();
          release(first_slot);
        }
      };
      if (pending)
        finish(release_first);
      else
        release_first();
      wgmma_wait_group<0>();
      release(at.slot);
      at.advance();
      add(partial);
    };
    // The same into the work tile's sums (bf16).
    const auto chain = [&](auto halves) {
      constexpr int kHalves = decltype(halves)::value;
      const int first_slot = at.slot;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (half > 0) at.advance();
        slot_full();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTmaBoxBytes / kTileWidthStep; ++i) step(sum, i, true);
        wgmma_commit_group();
      }
      if constexpr (kHalves > 1) {
        wgmma_wait_group<1>();
        release(first_slot);
      }
      wgmma_wait_group<0>();
      release(at.slot);
      at.advance();
    };
    with_columns<kTileTokens>(width_index_of<kTileTokens>(work_tile), [&](auto columns) {
      for (int i = 0; i < whole; ++i) {
        if (i % kStageSums == 0) begin_split(i / kStageSums);
        if constexpr (kChained<kType>)
          chain(std::integral_constant<int, 2>{});
        else
          run(columns, std::integral_constant<int, 2 / kStageSums>{});
      }
      if (whole % kStageSums == 0 && whole / kStageSums < stages_all)
        begin_split(whole / kStageSums);
      if constexpr (kChained<kType>) {
        if (left == kTmaBoxBytes) chain(std::integral_constant<int, 1>{});
      } else {
        if (kStageSums == 1 && left == kTmaBoxBytes) run(columns, std::integral_constant<int, 1>{});
      }
    });
    if (left > 0 && left != kTmaBoxBytes) {  // a shorter end of K, one MMA of full width at a time
      float partial[Plan::kTiles][4] = {};
      for (int begin = 0; begin < left; begin += kTmaBoxBytes) {
        slot_full();
        const int steps = min(kTmaBoxBytes, left - begin) / kTileWidthStep;
#pragma unroll 1
        for (int i = 0; i < steps; ++i) {
          wgmma_fence();
          if constexpr (kChained<kType>)
            step(sum, i, true);
          else
            step(partial, i, begin > 0 || i > 0);
          wgmma_commit_group();
          wgmma_wait_group<0>();
        }
        release(at.slot);
        at.advance();
      }
      if constexpr (!kChained<kType>) add(partial);
    }
    if constexpr (kSplitK) {
#pragma unroll
      for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[tile][i] = total[tile][i] + sum[tile][i];
    }
    finished = {work_tile, row};
    pending = true;
  }
}

}  // namespace koho::cuda::prefill
