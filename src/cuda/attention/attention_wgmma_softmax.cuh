// SPDX-License-Identifier: Apache-2.0
// The softmax of attention_wgmma.cu: a step's scores, accumulators of wgmma, become the weights
// that multiply v, and a row's base moves where weights would grow too large.
//
// NOTE: __fmul_rn and its like stand where the compiler could contract two operations to one
// rounding: the same row gets the same bits from each form of the kernel, in the first step and in
// the later ones.
#pragma once

#include <cstdint>

#include "cuda/attention/attention_wgmma.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda {

/// A thread's share of 64 rows: rows g and g + 8 of its warp's 16. Weights are 2^(score - base),
/// scores of base 2; it cancels in the last division.
struct Rows {
  float sum[kAccumulators] = {};
  float base[2] = {-INFINITY, -INFINITY};
  float total[2] = {};  // of this thread's columns
  float keep[2];        // factor for the sums, see raise_base()
};
/// What e4m3 pages need besides, over the tokens that the row has seen: the base also keeps weight
/// times v scale within f16.
struct Fp8RowState {
  float largest[2] = {-INFINITY, -INFINITY};
  float largest_scale[2] = {0x1p-60F, 0x1p-60F};  // of v
};

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 2));
}

/// Tokens >= seen[half] of the step are masked.
__device__ __forceinline__ void mask(float (&score)[kAccumulators], const int (&seen)[2]) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i)
    if (i / 4 * 8 + first + i % 2 >= seen[i / 2 % 2]) score[i] = -INFINITY;
}

/// The largest of a row's scores.
__device__ __forceinline__ float row_largest(const float (&score)[kAccumulators], int half) {
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = half * 2; i < kAccumulators; i += 8) {
    largest[0] = fmaxf(largest[0], fmaxf(score[i], score[i + 1]));
    largest[1] = fmaxf(largest[1], fmaxf(score[i + 4], score[i + 5]));
  }
  return quad_max(fmaxf(largest[0], largest[1]));
}

/// Moves a row's base to `next` if that is more than `lag` above it, so that sums are rescaled
/// seldom. Returns the factor for the sums: exactly 1 for a row whose base stays, since a row's
/// bits must not depend on other rows.
__device__ __forceinline__ float raise_base(float& base, float next, float lag) {
  if (!(next > base + lag)) return 1.0F;
  const float keep = exp2_approximate(base - next);
  base = next;
  return keep;
}
/// Multiplies totals by rows.keep; true on the whole warp if any of its rows' sums are to be
/// multiplied too.
__device__ __forceinline__ bool any_raised(Rows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    rows.total[half] = __fmul_rn(rows.total[half], rows.keep[half]);
  return __any_sync(0xFFFFFFFFU, rows.keep[0] != 1.0F || rows.keep[1] != 1.0F) != 0;
}

/// What a thread's rows see of a step: tokens < seen[half], checked if `masked`.
struct CausalBounds {
  int seen[2];
  bool masked;
};

/// Moves bases to what a step's scores need.
__device__ __forceinline__ bool update_bases(Rows& rows,
                                             float (&score)[kAccumulators],
                                             const CausalBounds& bounds,
                                             float scale) {
  constexpr float kLag = 8.0F;  // weights up to 2^8
  if (bounds.masked) mask(score, bounds.seen);
#pragma unroll
  for (int half = 0; half < 2; ++half)
    rows.keep[half] = raise_base(rows.base[half], __fmul_rn(row_largest(score, half), scale), kLag);
  return any_raised(rows);
}

/// The same for e4m3 values, whose scores take their token's scale here.
__device__ __forceinline__ bool update_bases(Rows& rows,
                                             Fp8RowState& fp8,
                                             float (&score)[kAccumulators],
                                             const CausalBounds& bounds,
                                             const StepScales& scales) {
  // 2^exponent exceeds every scale, so that weights times scales stay below 2^kLargestWeight where
  // the base moved, and below f16's largest while it lags.
  constexpr int kLargestWeight = 14;
  constexpr float kLag = 1.5F;
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kAccumulators / 4; ++tile) {
    const float2 scale = *reinterpret_cast<const float2*>(scales.keys + tile * 8 + first);
    score[tile * 4] = __fmul_rn(score[tile * 4], scale.x);
    score[tile * 4 + 1] = __fmul_rn(score[tile * 4 + 1], scale.y);
    score[tile * 4 + 2] = __fmul_rn(score[tile * 4 + 2], scale.x);
    score[tile * 4 + 3] = __fmul_rn(score[tile * 4 + 3], scale.y);
  }
  const float4 four = *reinterpret_cast<const float4*>(scales.largest);
  float largest_scale[2];
  largest_scale[0] = largest_scale[1] = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
  if (bounds.masked) {
    mask(score, bounds.seen);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of the tokens that the row sees
      float largest = 0.0F;
#pragma unroll 1
      for (int token = first / 2; token < bounds.seen[half] && token < kStepTokens; token += 4)
        largest = fmaxf(largest, scales.values[token]);
      largest_scale[half] = quad_max(largest);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    fp8.largest[half] = fmaxf(fp8.largest[half], row_largest(score, half));
    fp8.largest_scale[half] = fmaxf(fp8.largest_scale[half], largest_scale[half]);
    const int exponent = static_cast<int>(__float_as_uint(fp8.largest_scale[half]) >> 23) - 126;
    rows.keep[half] = raise_base(
        rows.base[half], fp8.largest[half] + static_cast<float>(exponent - kLargestWeight), kLag);
  }
  return any_raised(rows);
}

__device__ __forceinline__ void rescale(Rows& rows) {
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) rows.sum[i] *= rows.keep[i / 2 % 2];
}

/// Turns scores into weights in f32, in place: the MMA with v may still hold the registers of the
/// previous ones.
template <bool kFp8>
__device__ __forceinline__ void softmax_weights(Rows& rows,
                                                float (&score)[kAccumulators],
                                                float scale,
                                                const StepScales* scales) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float base[2];  // finite even for a row that sees nothing
  float total[2][2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    base[half] = rows.base[half] == -INFINITY ? 0.0F : rows.base[half];
#pragma unroll
  for (int tile = 0; tile < kAccumulators / 4; ++tile) {
    float2 of_values = make_float2(1.0F, 1.0F);
    if constexpr (kFp8)
      of_values = *reinterpret_cast<const float2*>(scales->values + tile * 8 + first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* s = score + tile * 4 + half * 2;
      const float low =
          exp2_approximate(kFp8 ? __fsub_rn(s[0], base[half]) : fmaf(s[0], scale, -base[half]));
      const float high =
          exp2_approximate(kFp8 ? __fsub_rn(s[1], base[half]) : fmaf(s[1], scale, -base[half]));
      total[half][0] += low;
      total[half][1] += high;
      s[0] = kFp8 ? low * of_values.x : low;
      s[1] = kFp8 ? high * of_values.y : high;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) rows.total[half] += total[half][0] + total[half][1];
}

/// Rounds weights to the A operand of the MMA with v.
template <bool kFp8>
__device__ __forceinline__ void pack_weights(std::uint32_t (&weights)[kStepTokens / 16][4],
                                             const float (&score)[kAccumulators]) {
#pragma unroll
  for (int tile = 0; tile < kAccumulators / 4; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* s = score + tile * 4 + half * 2;
      weights[tile / 2][tile % 2 * 2 + half] = kFp8 ? pack_f16(s[0], s[1]) : pack_bf16(s[0], s[1]);
    }
}

}  // namespace koho::cuda
