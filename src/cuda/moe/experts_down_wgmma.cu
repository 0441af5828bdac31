// SPDX-License-Identifier: Apache-2.0
// experts_down.cuh on wgmma (sm_90a), with the sums of stage_sums.cuh.
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/moe/experts_down.cuh"
#include "cuda/moe/stage_sums.cuh"

namespace koho::cuda {
namespace {

template <int kTiles>
struct WgmmaTile : StageSums<kTiles> {
  static constexpr int kColumnBytes = 8 * kTiles;

  /// Writes eight columns as part of a core matrix, as wgmma reads it.
  static __device__ __forceinline__ void store(std::uint8_t* quantized,
                                               int row,
                                               int column,
                                               uint2 eight) {
    *reinterpret_cast<uint2*>(quantized + column / kTileChunk * (kColumnBytes * kTileChunk) +
                              row * kTileChunk + column % kTileChunk) = eight;
  }

  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t tokens, int width) {
    constexpr int kSteps = kStageWidth / kTileWidthStep;
    constexpr std::uint32_t kTokenStep = 2 * 8 * kTiles * kTileChunk;
    constexpr std::uint32_t kStageTokens = kStageWidth * 8 * kTiles;
    std::uint64_t a = core_matrix_descriptor(weights, kTileRows * kTileChunk);
    std::uint64_t b = core_matrix_descriptor(tokens, 8 * kTiles * kTileChunk);
#pragma unroll 1
    for (; width >= kStageWidth; width -= kStageWidth) {
      this->template add<kSteps>(a, b, kTokenStep);
      a = advance_descriptor(a, kStageWidth * kTileRows);
      b = advance_descriptor(b, kStageTokens);
    }
    this->template add_some<kSteps - 1>(width / kTileWidthStep, a, b, kTokenStep);
  }
};

}  // namespace

cudaError_t launch_experts_down_wgmma(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  if (p.token_tiles == 4)
    return p.width_bytes > kDownThinWidth
               ? launch_experts_down_form<WgmmaTile, 4, true, 2>(p, multiprocessors, stream)
               : launch_experts_down_form<WgmmaTile, 4, false, 2>(p, multiprocessors, stream);
  return p.width_bytes > kStageWidth
             ? launch_experts_down_form<WgmmaTile, 1, true, 3>(p, multiprocessors, stream)
             : launch_experts_down_form<WgmmaTile, 1, false, 3>(p, multiprocessors, stream);
}

const void* kernel_of::experts_down_wgmma() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
