// SPDX-License-Identifier: Apache-2.0
// Block scales in the decode kernels, which sum every 128 columns of K (a block) by itself and add
// it here. A warp's lanes hold the scales of four blocks, and those of the four behind them are on
// their way; lane 4 i + j has a token's or weight group's number i in block j, so that a load takes
// 16 bytes of each row of scales.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

/// Swap-AB: of a warp's 16 weight rows by its n8 tiles of tokens.
template <int kTiles>
class BlockScales {
 public:
  /// Begins a weight tile; `tile` counts the tiles of all experts. May precede the wait for the
  /// previous kernel.
  __device__ __forceinline__ void begin_weights(const Gemm& p, std::int64_t tile, int first_block) {
    blocks_ = (p.width_bytes + kBlockWidth - 1) / kBlockWidth;
    weights_ = p.block_scales + (tile * 2 + lane() / 4 % 2) * blocks_;
    next_weight_ = weights_[min(first_block + lane() % 4, blocks_ - 1)];
  }
  /// `row_of(tile)` is the row of x of this lane's token of an n8 tile.
  template <typename RowOf>
  __device__ __forceinline__ void begin_tokens(const Gemm& p, int block, const RowOf& row_of) {
    const float* at = p.x_scales + min(block + lane() % 4, blocks_ - 1);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      next_tokens_[tile] = at[row_of(tile) * static_cast<int>(p.x_scales_stride)];
  }
  /// The next four blocks begin with `block`; every fourth block, from the first one on.
  template <typename RowOf>
  __device__ __forceinline__ void take(const Gemm& p, int block, const RowOf& row_of) {
    weight_ = next_weight_;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) tokens_[tile] = next_tokens_[tile];
    if (block + 4 >= blocks_) return;
    next_weight_ = weights_[min(block + 4 + lane() % 4, blocks_ - 1)];
    begin_tokens(p, block + 4, row_of);
  }
  /// Adds the sums of block `of_four` of the four.
  __device__ __forceinline__ void add(float (&sum)[kTiles][4],
                                      const float (&partial)[kTiles][4],
                                      int of_four) const {
    float weight[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) weight[half] = from(weight_, half * 4 + of_four);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float token[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        token[i] = from(tokens_[tile], (lane() % 4 * 2 + i) * 4 + of_four);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[tile][i] =
            add_scaled_block(sum[tile][i], partial[tile][i], weight[i / 2], token[i % 2]);
    }
  }

 private:
  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  static __device__ __forceinline__ float from(float value, int lane) {
    return __shfl_sync(0xFFFFFFFFU, value, lane);
  }

  int blocks_;
  const float* weights_;
  float weight_, next_weight_;
  float tokens_[kTiles], next_tokens_[kTiles];
};

/// The same in the usual orientation: of a warp's 16 tokens by kTiles times 8 weight rows.
template <int kTiles>
class UnswappedBlockScales {
 public:
  /// Begins the weight rows from `row` on. May precede the wait for the previous kernel.
  __device__ __forceinline__ void begin_weights(const Gemm& p, int row, int block = 0) {
    const int blocks = num_blocks(p);
    const float* from = p.block_scales + min(block + lane() % 4, blocks - 1);
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const int group = min(row / 8 + i * 8 + lane() / 4, p.tiles * (kTileRows / 8) - 1);
      next_weights_[i] = from[(group / (kTileRows / 8) * 2 + group % 2) * blocks];
    }
  }
  /// `token` is the lane's first row of x; the other is the eighth behind it.
  __device__ __forceinline__ void begin_tokens(const Gemm& p, int token, int block = 0) {
    const float* from = p.x_scales + min(block + lane() % 4, num_blocks(p) - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      next_tokens_[i] =
          from[min(token + 8 * i, p.tokens - 1) * static_cast<int>(p.x_scales_stride)];
  }
  /// The next four blocks begin with `block`, a multiple of four.
  __device__ __forceinline__ void take(const Gemm& p, int row, int token, int block) {
#pragma unroll
    for (int i = 0; i < kWeights; ++i) weights_[i] = next_weights_[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) tokens_[i] = next_tokens_[i];
    if (block + 4 >= num_blocks(p)) return;
    begin_weights(p, row, block + 4);
    begin_tokens(p, token, block + 4);
  }
  /// Adds the sums of block `of_four` of the four.
  __device__ __forceinline__ void add(float (&sum)[kTiles][4],
                                      const float (&partial)[kTiles][4],
                                      int of_four) const {
    float token[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      token[i] = __shfl_sync(0xFFFFFFFFU, tokens_[i], lane() / 4 * 4 + of_four);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float weight = __shfl_sync(0xFFFFFFFFU, weights_[tile / 8], tile % 8 * 4 + of_four);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[tile][i] = add_scaled_block(sum[tile][i], partial[tile][i], weight, token[i / 2]);
    }
  }

 private:
  static constexpr int kWeights = (kTiles + 7) / 8;
  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  static __device__ __forceinline__ int num_blocks(const Gemm& p) {
    return (p.width_bytes + kBlockWidth - 1) / kBlockWidth;
  }

  float weights_[kWeights], next_weights_[kWeights];
  float tokens_[2], next_tokens_[2];
};

}  // namespace koho::cuda
