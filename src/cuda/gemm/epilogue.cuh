// SPDX-License-Identifier: Apache-2.0
// How GEMM kernels end: one place for the order of roundings, so that a token row has the same bits
// whichever kernel multiplied it.
#pragma once

#include "cuda/device/numeric.cuh"
#include "cuda/gemm/gemm.h"

namespace koho::cuda {

/// Under block scales: a sum of 128 columns of K, scaled and added to those before it.
__device__ __forceinline__ float add_scaled_block(float sum,
                                                  float partial,
                                                  float weight_scale,
                                                  float x_scale) {
  return __fmaf_rn(partial, __fmul_rn(weight_scale, x_scale), sum);
}

/// x_scale * (row_scale * sum) for fp8; the bias, if there is one, is added in the same rounding.
/// Other sums have no scales, or had them as they were added.
template <TileType kType, bool kMayHaveBias = true>
__device__ __forceinline__ float apply_scales(
    const Gemm& p, float sum, float row_scale, float x_scale, float bias) {
  const bool biased = kMayHaveBias && p.bias != nullptr;
  if constexpr (kType != TileType::fp8) return biased ? __fadd_rn(sum, bias) : sum;
  const float scaled = __fmul_rn(row_scale, sum);
  return biased ? __fmaf_rn(x_scale, scaled, bias) : __fmul_rn(x_scale, scaled);
}

/// The same without a condition: a missing bias is kNoBias, which leaves any sum as it is.
constexpr float kNoBias = -0.0F;
template <TileType kType>
__device__ __forceinline__ float apply_scales(float sum,
                                              float row_scale,
                                              float x_scale,
                                              float bias) {
  if constexpr (kType != TileType::fp8) return __fadd_rn(sum, bias);
  return __fmaf_rn(x_scale, __fmul_rn(row_scale, sum), bias);
}

__device__ __forceinline__ void store_output(const Gemm& p,
                                             std::int64_t token,
                                             int n,
                                             float value) {
  const std::int64_t place = token * p.out_stride + n;
  if (p.epilogue == Epilogue::f32)
    static_cast<float*>(p.out)[place] = value;
  else
    static_cast<Bf16*>(p.out)[place] = to_bf16(value);
}

/// Transposes a warp's 8 x 8 bf16 values: a lane gives two tokens of one weight row and gets two
/// adjacent weight rows of one token.
__device__ __forceinline__ std::uint32_t movmatrix_trans(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

/// Stores two adjacent bf16 columns, as far as they exist. `place` is the offset of the token's
/// row.
__device__ __forceinline__ void store_pair(const Gemm& p,
                                           std::int64_t place,
                                           int n,
                                           std::uint32_t pair) {
  Bf16* out = static_cast<Bf16*>(p.out) + place + n;
  if (n + 1 < p.rows && reinterpret_cast<std::uintptr_t>(out) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(out) = pair;
  } else {
    if (n < p.rows) out[0] = static_cast<Bf16>(pair & 0xFFFFU);
    if (n + 1 < p.rows) out[1] = static_cast<Bf16>(pair >> 16U);
  }
}

}  // namespace koho::cuda
