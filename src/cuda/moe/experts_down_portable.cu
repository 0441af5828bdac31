// SPDX-License-Identifier: Apache-2.0
// experts_down.cuh on mma.sync, for every GPU, with the sums of gemm_grouped_decode_portable.cu. A
// token block's quantised rows lie in shared memory as f16, which represents E4M3 exactly: they are
// upcast once, not by each warp for each tile.
#include "cuda/gemm/mma_tile.cuh"
#include "cuda/moe/experts_down.cuh"

namespace koho::cuda {
namespace {

template <int kTiles>
struct MmaSyncTile {
  static_assert(kTiles == 1);
  static constexpr int kColumnBytes = 2 * 8 * kTiles;
  static constexpr int kMatrix = 8 * kTileChunk;  // bytes

  float sum[kTiles][4] = {};

  /// A chunk's 16 columns become two 8 x 8 tiles of ldmatrix: the first two and the last two of
  /// every four columns, as upcast_weights() orders the weights.
  static __device__ __forceinline__ void store(std::uint8_t* quantized,
                                               int row,
                                               int column,
                                               uint2 eight) {
    uint2 low;
    uint2 high;
    e4m3_to_f16(eight.x, low.x, high.x);
    e4m3_to_f16(eight.y, low.y, high.y);
    std::uint8_t* to =
        quantized + column / kTileChunk * (2 * kMatrix) + row * kTileChunk + column % kTileChunk;
    *reinterpret_cast<uint2*>(to) = low;
    *reinterpret_cast<uint2*>(to + kMatrix) = high;
  }

  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t tokens, int width) {
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll 4
    for (int i = 0; i < width / kTileWidthStep; ++i) {
      const auto step = static_cast<std::uint32_t>(i);
      std::uint32_t w[4];
      std::uint32_t x[4];
      ldmatrix_x4(x, tokens + step * (4 * kMatrix) + lane * kTileChunk);
      load_weights(w, weights + step * (kTileRows * kTileWidthStep));
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        std::uint32_t a[4];
        upcast_weights(a, w[2 * chunk], w[2 * chunk + 1]);
        mma_f16(sum[0], a[0], a[1], a[2], a[3], x[2 * chunk], x[2 * chunk + 1]);
      }
    }
  }
};

}  // namespace

cudaError_t launch_experts_down_portable(const Gemm& p, int multiprocessors, cudaStream_t stream) {
  return p.width_bytes > kStageWidth
             ? launch_experts_down_form<MmaSyncTile, 1, true, 3>(p, multiprocessors, stream)
             : launch_experts_down_form<MmaSyncTile, 1, false, 3>(p, multiprocessors, stream);
}

const void* kernel_of::experts_down_portable() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
