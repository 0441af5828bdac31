// SPDX-License-Identifier: Apache-2.0
// How Hopper's kernels for many shapes end: one place for the order of roundings, so that a row has
// the same bits whichever of them multiplied it.
#pragma once

#include "cuda/matmul.h"
#include "cuda/numeric.cuh"

namespace koho::cuda {

/// x_scale * (row_scale * sum), of e4m3 operands; and the bias, if there is one, with one rounding.
template <TileType kType>
__device__ __forceinline__ float scale_sum(
    const Matmul& p, float sum, float row_scale, float x_scale, float bias) {
  if constexpr (kType == TileType::bf16) return p.bias != nullptr ? __fadd_rn(sum, bias) : sum;
  const float scaled = __fmul_rn(row_scale, sum);
  return p.bias != nullptr ? __fmaf_rn(x_scale, scaled, bias) : __fmul_rn(x_scale, scaled);
}

__device__ __forceinline__ void store_sum(const Matmul& p, std::int64_t token, int n, float value) {
  const std::int64_t place = token * p.out_stride + n;
  if (p.end == MatmulEnd::f32)
    static_cast<float*>(p.out)[place] = value;
  else
    static_cast<Bf16*>(p.out)[place] = to_bf16(value);
}

}  // namespace koho::cuda
