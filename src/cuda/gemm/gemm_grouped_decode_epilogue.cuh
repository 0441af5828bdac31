// SPDX-License-Identifier: Apache-2.0
// The grouped decode GEMM's epilogue: scales, bias, SwiGLU, and the reduction of split-K sums.
#pragma once

#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_grouped_decode_tiles.cuh"

namespace koho::cuda {

/// The epilogue of a work tile without split-K. A thread has rows g and g + 8 of its warp's 16, and
/// tokens 2t and 2t + 1 of each n8 tile. It loads the scales while the work tile is multiplied.
template <TileType kType, int kTiles>
struct TileEpilogue {
  static constexpr int kEach = (kTiles + 3) / 4;  // tokens a lane fetches the scales of

  int row;  // the thread's first weight row
  float row_scales[2];
  int x_rows[kEach];
  float x_scales[kEach];  // of tokens lane and lane + 32

  __device__ __forceinline__ void begin(const Gemm& p, const WorkTile& work_tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row = work_tile.tile * kTileRows + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 +
          lane / 4;
    if constexpr (kType == TileType::fp8) {
      const float* scales =
          p.row_scales + static_cast<std::int64_t>(work_tile.expert) * p.tiles * kTileRows + row;
      row_scales[0] = scales[0];
      row_scales[1] = scales[8];
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        x_rows[i] = x_row_of(p, work_tile.first + min(i * 32 + lane, work_tile.count - 1));
    }
  }
  __device__ __forceinline__ void fetch_x_scales(const Gemm& p) {
    if constexpr (kType == TileType::fp8)
#pragma unroll
      for (int i = 0; i < kEach; ++i) x_scales[i] = p.x_scales[x_rows[i]];
  }

  __device__ __forceinline__ void finish(const Gemm& p,
                                         const WorkTile& work_tile,
                                         const float (&sum)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float bias[2] = {};
    if (p.bias != nullptr)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (row + i * 8 < p.rows) bias[i] = to_float(p.bias[row + i * 8]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 >= work_tile.count) break;
      float x_scale[2];
      float value[4];
      if constexpr (kType == TileType::fp8) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          x_scale[i] =
              __shfl_sync(0xFFFFFFFFU, x_scales[tile / 4], tile % 4 * 8 + lane % 4 * 2 + i);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[i] = apply_scales<TileType::fp8>(p, sum[tile][i], row_scales[i / 2], x_scale[i % 2],
                                                 bias[i / 2]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          value[i] = apply_scales<TileType::bf16>(p, sum[tile][i], 1.0F, 1.0F, bias[i / 2]);
      }
      if (p.epilogue == Epilogue::f32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = tile * 8 + lane % 4 * 2 + i % 2;
          if (token < work_tile.count && row + i / 2 * 8 < p.rows)
            store_output(p, work_tile.first + token, row + i / 2 * 8, value[i]);
        }
        continue;
      }
      // Transposed, a lane has two adjacent columns of one token.
      const int token = tile * 8 + lane / 4;
      const int first = row - lane / 4;  // of the warp's
      if (p.epilogue == Epilogue::silu_mul) {
        const std::uint32_t pair =
            movmatrix_trans(pack_bf16(silu_mul(round_bf16(value[0]), round_bf16(value[2])),
                                      silu_mul(round_bf16(value[1]), round_bf16(value[3]))));
        if (token < work_tile.count)
          store_pair(p, (work_tile.first + token) * p.out_stride, first / 2 + lane % 4 * 2, pair);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t pair =
              movmatrix_trans(pack_bf16(value[2 * half], value[2 * half + 1]));
          if (token < work_tile.count)
            store_pair(p, (work_tile.first + token) * p.out_stride, first + half * 8 + lane % 4 * 2,
                       pair);
        }
      }
    }
  }
};

/// Adds the splits of a linear layer in rank order, and scales and stores this CTA's share of the
/// work tile.
template <TileType kType, int kTiles>
__device__ void reduce_split_k(const Gemm& p, const WorkTile& work_tile, const float* sums) {
  const int split = static_cast<int>(cluster_rank());
  const int pairs = work_tile.count * (kTileRows / 2);
  const std::uint32_t base = shared_address(sums);
  for (int i = pairs * split / p.split_k + static_cast<int>(threadIdx.x);
       i < pairs * (split + 1) / p.split_k; i += kWarpgroup) {
    const int token = i / (kTileRows / 2);
    const int row = i % (kTileRows / 2) * 2;
    const int n = work_tile.tile * kTileRows + row;
    if (n >= p.rows) continue;
    float2 total = make_float2(0.0F, 0.0F);
    for (int rank = 0; rank < p.split_k; ++rank) {
      const float2 other =
          cluster_load(base + static_cast<std::uint32_t>(token * kSumStride + row) * 4U,
                       static_cast<std::uint32_t>(rank));
      total = make_float2(total.x + other.x, total.y + other.y);
    }
    const std::int64_t permuted_row = work_tile.first + token;
    const float x_scale =
        kType == TileType::fp8 ? p.x_scales[x_row_of(p, work_tile.first + token)] : 1.0F;
    const auto write = [&](float sum, int column) {
      if (column >= p.rows) return;
      constexpr TileType kScaled = kType == TileType::fp8 ? TileType::fp8 : TileType::bf16;
      const float row_scale = kType == TileType::fp8 ? p.row_scales[column] : 1.0F;
      const float bias = p.bias != nullptr ? to_float(p.bias[column]) : 0.0F;
      store_output(p, permuted_row, column,
                   apply_scales<kScaled>(p, sum, row_scale, x_scale, bias));
    };
    write(total.x, n);
    write(total.y, n + 1);
  }
}

/// The scale of a block of K of the first (second = 0) or second 8 rows of every 16 of a work tile.
__device__ __forceinline__ float weight_scale(const Gemm& p,
                                              const WorkTile& work_tile,
                                              int block,
                                              int second) {
  const int blocks = (p.width_bytes + kBlockWidth - 1) / kBlockWidth;
  return p
      .block_scales[((static_cast<std::int64_t>(work_tile.expert) * p.tiles + work_tile.tile) * 2 +
                     second) *
                        blocks +
                    block];
}

}  // namespace koho::cuda
