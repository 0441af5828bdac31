// SPDX-License-Identifier: Apache-2.0
// The grouped decode GEMM (gemm_grouped_decode.cuh) on mma.sync, for every GPU. e4m3 values become
// f16 in registers, exactly; sums are f32. One warp has 16 of a tile's 64 rows.
#include "cuda/gemm/gemm_grouped_decode.cuh"
#include "cuda/gemm/mma_tile.cuh"

namespace koho::cuda {
namespace {

template <TileType kType, int kTiles>
struct MmaSyncMainloop {
  static constexpr int kRowTiles = 1;  // of a work tile
  static constexpr int kCtasPerSm =
      kType == TileType::fp8_block && kTiles == 8 ? 1 : GroupedDecodePlan<kTiles, 1>::kCtasPerSm;

  float sum[kTiles][4] = {};

  /// Adds 32 bytes of K: two chunks of weights and of tokens.
  __device__ __forceinline__ void step(std::uint32_t weights,
                                       const std::uint32_t (&x)[2][kTiles],
                                       float (&into)[kTiles][4]) {
    std::uint32_t w[4];
    load_weights(w, weights);
    if constexpr (kType == TileType::bf16) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        mma_bf16(into[tile], w[0], w[1], w[2], w[3], x[0][tile], x[1][tile]);
    } else {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        std::uint32_t a[4];
        upcast_weights(a, w[2 * chunk], w[2 * chunk + 1]);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          std::uint32_t b[2];
          e4m3_to_f16(x[chunk][tile], b[0], b[1]);
          mma_f16(into[tile], a[0], a[1], a[2], a[3], b[0], b[1]);
        }
      }
    }
  }

  /// Loads two chunks of all token tiles: 2 * kTiles core matrices of 128 contiguous bytes.
  static __device__ __forceinline__ void load_tokens(std::uint32_t (&x)[2][kTiles],
                                                     std::uint32_t address) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t r[4];
    if constexpr (kTiles == 1) {
      // ldmatrix_x4 also loads the next two chunks; loading them again later costs less than
      // keeping them.
      ldmatrix_x4(r, address + static_cast<std::uint32_t>(lane % 16 * 16));
      x[0][0] = r[0];
      x[1][0] = r[1];
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; i += 4) {
        ldmatrix_x4(r, address + static_cast<std::uint32_t>(i * 128 + lane * 16));
#pragma unroll
        for (int j = 0; j < 4; ++j) x[(i + j) / kTiles][(i + j) % kTiles] = r[j];
      }
    }
  }

  __device__ __forceinline__ void run(std::uint32_t weights,
                                      std::uint32_t tokens,
                                      int steps,
                                      float (&into)[kTiles][4]) {
#pragma unroll 4
    for (int i = 0; i < steps; ++i) {
      std::uint32_t x[2][kTiles];
      load_tokens(x, tokens + static_cast<std::uint32_t>(i * 2 * kTiles * 128));
      step(weights + static_cast<std::uint32_t>(i * 2048), x, into);
    }
  }

  __device__ __forceinline__ void stage(const Gemm& p,
                                        const WorkTile& work_tile,
                                        int stage,
                                        std::uint32_t weights,
                                        std::uint32_t tokens) {
    const int bytes = min(kStageWidth, p.width_bytes - stage * kStageWidth);
    if constexpr (kType != TileType::fp8_block) {
      run(weights, tokens, bytes / kTileWidthStep, sum);
    } else {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      for (int half = 0; half * kBlockWidth < bytes; ++half) {
        float partial[kTiles][4] = {};
        const int steps = min(kBlockWidth, bytes - half * kBlockWidth) / kTileWidthStep;
        run(weights + static_cast<std::uint32_t>(half * kBlockWidth * kTileRows),
            tokens + static_cast<std::uint32_t>(half * kBlockWidth * 8 * kTiles), steps, partial);
        const int block = stage * (kStageWidth / kBlockWidth) + half;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int token =
                min(tile * 8 + lane % 4 * 2 + i % 2, work_tile.count - 1) + work_tile.first;
            const int row = x_row_of(p, token);
            sum[tile][i] = add_scaled_block(sum[tile][i], partial[tile][i],
                                            weight_scale(p, work_tile, block, i / 2),
                                            p.x_scales[row * p.x_scales_stride + block]);
          }
      }
    }
  }
};

}  // namespace

cudaError_t launch_gemm_grouped_decode_portable(const Gemm& p,
                                                int multiprocessors,
                                                cudaStream_t stream) {
  return launch_grouped_decode<MmaSyncMainloop, true>(p, multiprocessors, stream);
}

const void* kernel_of::gemm_grouped_decode_portable() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
