// SPDX-License-Identifier: Apache-2.0
// The prefill GEMM's block scales: the warp that brings them, the ring they pass through, and how
// MMA warps apply them.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_prefill_sm90_tiles.cuh"

namespace koho::cuda::prefill {

/// A slot has the scales of one block of K (128 columns): of the work tile's tokens, then of both
/// halves of each of the CTA's weight tiles (Gemm::block_scales).
template <int kTileTokens>
struct ScaleRing : ScaleRingPlan<kTileTokens> {
  using Plan = ScaleRingPlan<kTileTokens>;

  std::uint32_t barriers;  // full, then empty
  float* words;
  PipelineState<Plan::kSlots> at;

  __device__ __forceinline__ ScaleRing(std::uint32_t barriers, float* words)
      : barriers(barriers), words(words) {}
  __device__ __forceinline__ std::uint32_t full(int slot) const {
    return barriers + 8U * static_cast<std::uint32_t>(slot);
  }
  __device__ __forceinline__ std::uint32_t empty(int slot) const {
    return full(slot + Plan::kSlots);
  }
  __device__ __forceinline__ float* slot() const { return words + at.slot * Plan::kWords; }

  __device__ __forceinline__ void wait_full() const { mbarrier_wait(full(at.slot), at.phase); }
  __device__ __forceinline__ void wait_empty() const {
    mbarrier_wait(empty(at.slot), at.phase ^ 1U);
  }
  /// By a warp that has read the slot.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(at.slot));
    at.advance();
  }
  /// By each lane that has written its part of the slot.
  __device__ __forceinline__ void commit() {
    mbarrier_arrive(full(at.slot));
    at.advance();
  }
};

/// Scales the sums of the ring's present slot and adds them; `group` is the weight tile's number.
template <int kTileTokens, int kTiles>
__device__ __forceinline__ void add_block(ScaleRing<kTileTokens>& ring,
                                          int group,
                                          float (&sum)[kTileTokens / 8][4],
                                          const float (&partial)[kTiles][4]) {
  ring.wait_full();
  const float* tokens = ring.slot() + threadIdx.x % 4 * 2;
  const float2 weights = *reinterpret_cast<const float2*>(ring.slot() + kTileTokens + group * 2);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float2 x = *reinterpret_cast<const float2*>(tokens + tile * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[tile][i] = add_scaled_block(sum[tile][i], partial[tile][i],
                                      i / 2 == 0 ? weights.x : weights.y, i % 2 == 0 ? x.x : x.y);
  }
  ring.release();
}

/// The warp that brings the scales of every work tile. A lane has every 32nd token and reads its
/// scales of four blocks at a time.
template <int kTileTokens>
__device__ void produce_scales(const Gemm& p,
                               const PrefillTileScheduler& work,
                               const WorkTileQueue& list,
                               ScaleRing<kTileTokens> ring) {
  constexpr int kEach = kTileTokens / 32;
  constexpr int kFour = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int stride = static_cast<int>(gridDim.x) / 2;
  const int blocks = (p.width_bytes + kBlockWidth - 1) / kBlockWidth;
  const auto x_stride = static_cast<int>(p.x_scales_stride);
  const bool vectors = blocks % kFour == 0 && x_stride % kFour == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.x_scales) % 16 == 0;
  int number = 0;
  for (int index = static_cast<int>(blockIdx.x) / 2; index < work.work_tiles;
       index += stride, ++number) {
    const PrefillWorkTile work_tile = list.get(number);
    const int tile = (work_tile.block * 2 + cta_rank()) * kRowTiles + lane / 2;
    const float* weights =
        p.block_scales +
        ((static_cast<std::int64_t>(work_tile.expert) * p.tiles + min(tile, p.tiles - 1)) * 2 +
         lane % 2) *
            blocks;
    int x[kEach];  // offsets of the lane's tokens
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      x[i] = (work_tile.first + min(lane + i * 32, work_tile.count - 1)) * x_stride;
#pragma unroll 1
    for (int first = 0; first < blocks; first += kFour) {
      float four[kEach][kFour];
      float of_weights[kFour] = {};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (vectors) {
          const float4 loaded = *reinterpret_cast<const float4*>(p.x_scales + x[i] + first);
          four[i][0] = loaded.x;
          four[i][1] = loaded.y;
          four[i][2] = loaded.z;
          four[i][3] = loaded.w;
        } else {
#pragma unroll
          for (int k = 0; k < kFour; ++k)
            four[i][k] = p.x_scales[x[i] + min(first + k, blocks - 1)];
        }
      }
      if (lane < 2 * kRowTiles)
#pragma unroll
        for (int k = 0; k < kFour; ++k) of_weights[k] = weights[min(first + k, blocks - 1)];
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        if (first + k >= blocks) break;
        ring.wait_empty();
#pragma unroll
        for (int i = 0; i < kEach; ++i) ring.slot()[lane + i * 32] = four[i][k];
        if (lane < 2 * kRowTiles) ring.slot()[kTileTokens + lane] = of_weights[k];
        ring.commit();
      }
    }
  }
}

}  // namespace koho::cuda::prefill
