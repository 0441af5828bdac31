// SPDX-License-Identifier: Apache-2.0
// How kernels on mma.sync read tiled weights: one warp has 16 of a tile's 64 rows and takes 32
// bytes of K, two chunks, at a time.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

/// This warp's rows of the two chunks of a tile from `address` on: (chunk 0, rows 0-7), (0, 8-15),
/// (1, 0-7), (1, 8-15).
__device__ __forceinline__ void load_weights(std::uint32_t (&w)[4], std::uint32_t address) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int matrix = lane / 8;
  constexpr int kChunk = kTileRows * kTileChunk;
  ldmatrix_x4(
      w, address + static_cast<std::uint32_t>(matrix / 2 * kChunk + (warp * 2 + matrix % 2) * 128 +
                                              lane % 8 * kTileChunk));
}

/// One chunk of e4m3 rows g and g + 8 as the MMA's A fragment in f16. A register holds 4 adjacent
/// values of K, which the MMA takes for columns k, k + 1, k + 8 and k + 9; as B is permuted alike,
/// the sum is the same.
__device__ __forceinline__ void upcast_weights(std::uint32_t (&a)[4],
                                               std::uint32_t row,
                                               std::uint32_t row_8) {
  e4m3_to_f16(row, a[0], a[2]);
  e4m3_to_f16(row_8, a[1], a[3]);
}

}  // namespace koho::cuda
