// SPDX-License-Identifier: Apache-2.0
// Sums of a tile of FP8 weights on wgmma, for the experts' kernels of few tokens: each 256 bytes of
// K have a sum of their own, and these are added in order in f32, as gemm_grouped_decode_sm90.cu
// does.
#pragma once

#include <cstdint>

#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

/// A thread's sums: sum[tile][2 i + j] is of row g + 8 i of its warp's 16 and column 8 tile + 2 t +
/// j (wgmma.cuh).
template <int kTiles>
struct StageSums {
  float sum[kTiles][4] = {};

  /// Adds kSteps MMAs of 32 bytes of K, at most 256 in all; the token operand's next one is
  /// `token_step` further on. By one warpgroup.
  template <int kSteps>
  __device__ __forceinline__ void add(std::uint64_t weights,
                                      std::uint64_t tokens,
                                      std::uint32_t token_step) {
    static_assert(kSteps * kTileWidthStep <= kStageWidth);
    constexpr std::uint32_t kWeightStep = 2 * kTileRows * kTileChunk;
    float part[kTiles][4] = {};
    wgmma_fence();
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i)
      wgmma<TileType::fp8, 8 * kTiles>(&part[0][0], advance_descriptor(weights, i * kWeightStep),
                                       advance_descriptor(tokens, i * token_step), i > 0 ? 1 : 0);
    wgmma_commit_group();
    wgmma_wait_group<0>();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[tile][i] += part[tile][i];
  }
  /// add() of `steps`, from 1 to kStepsMax; other numbers add nothing, or kStepsMax if that is 8.
  template <int kStepsMax>
  __device__ __forceinline__ void add_some(int steps,
                                           std::uint64_t weights,
                                           std::uint64_t tokens,
                                           std::uint32_t token_step) {
    static_assert(kStepsMax == 7 || kStepsMax == 8);
    switch (steps) {
      case 1:
        return add<1>(weights, tokens, token_step);
      case 2:
        return add<2>(weights, tokens, token_step);
      case 3:
        return add<3>(weights, tokens, token_step);
      case 4:
        return add<4>(weights, tokens, token_step);
      case 5:
        return add<5>(weights, tokens, token_step);
      case 6:
        return add<6>(weights, tokens, token_step);
      case 7:
        return add<7>(weights, tokens, token_step);
      default:
        if constexpr (kStepsMax == 8) add<8>(weights, tokens, token_step);
    }
  }
};

}  // namespace koho::cuda
