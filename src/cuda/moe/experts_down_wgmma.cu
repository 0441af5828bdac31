// SPDX-License-Identifier: Apache-2.0
// experts_down.cuh on wgmma (sm_90a), with the sums of gemm_grouped_decode_sm90.cu: each 256 bytes
// of K have a sum of their own, and these are added in order in f32.
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/moe/experts_down.cuh"

namespace koho::cuda {
namespace {

template <int kTiles>
struct WgmmaTile {
  static constexpr int kColumnBytes = 8 * kTiles;

  float sum[kTiles][4] = {};

  /// Writes eight columns as part of a core matrix, as wgmma reads it.
  static __device__ __forceinline__ void store(std::uint8_t* quantized,
                                               int row,
                                               int column,
                                               uint2 eight) {
    *reinterpret_cast<uint2*>(quantized + column / kTileChunk * (kColumnBytes * kTileChunk) +
                              row * kTileChunk + column % kTileChunk) = eight;
  }

  template <int kSteps>
  __device__ __forceinline__ void run(std::uint64_t weights, std::uint64_t tokens) {
    constexpr std::uint32_t kWeightStep = 2 * kTileRows * kTileChunk;
    constexpr std::uint32_t kTokenStep = 2 * 8 * kTiles * kTileChunk;
    float part[kTiles][4] = {};
    wgmma_fence();
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i)
      wgmma<TileType::fp8, 8 * kTiles>(&part[0][0], advance_descriptor(weights, i * kWeightStep),
                                       advance_descriptor(tokens, i * kTokenStep), i > 0 ? 1 : 0);
    wgmma_commit_group();
    wgmma_wait_group<0>();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[tile][i] += part[tile][i];
  }

  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t tokens, int width) {
    constexpr std::uint32_t kStageTokens = kStageWidth * 8 * kTiles;
    std::uint64_t a = core_matrix_descriptor(weights, kTileRows * kTileChunk);
    std::uint64_t b = core_matrix_descriptor(tokens, 8 * kTiles * kTileChunk);
#pragma unroll 1
    for (; width >= kStageWidth; width -= kStageWidth) {
      run<kStageWidth / kTileWidthStep>(a, b);
      a = advance_descriptor(a, kStageWidth * kTileRows);
      b = advance_descriptor(b, kStageTokens);
    }
    switch (width / kTileWidthStep) {
      case 1:
        return run<1>(a, b);
      case 2:
        return run<2>(a, b);
      case 3:
        return run<3>(a, b);
      case 4:
        return run<4>(a, b);
      case 5:
        return run<5>(a, b);
      case 6:
        return run<6>(a, b);
      case 7:
        return run<7>(a, b);
      default:
        return;
    }
  }
};

}  // namespace

cudaError_t launch_experts_down_wgmma(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  if (p.token_tiles == 4)
    return launch_experts_down_form<WgmmaTile, 4, false, 2>(p, multiprocessors, stream);
  return p.width_bytes > kStageWidth
             ? launch_experts_down_form<WgmmaTile, 1, true, 3>(p, multiprocessors, stream)
             : launch_experts_down_form<WgmmaTile, 1, false, 3>(p, multiprocessors, stream);
}

const void* kernel_of::experts_down_wgmma() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
