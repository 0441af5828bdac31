// SPDX-License-Identifier: Apache-2.0
// The roundings and reductions that all kernels share, equal to tensor/number.h bit for bit.
#pragma once

#include <cfloat>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace koho::cuda {

using Bf16 = std::uint16_t;  // storage of a bf16

constexpr float kE4m3Max = 448.0F;
constexpr float kScaleMin = 1.0F / (448.0F * 512.0F);
constexpr int kQuantColumns = 128;

__device__ __forceinline__ float to_float(Bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value) << 16);
}
__device__ __forceinline__ Bf16 to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
/// Maps a float to an unsigned integer in the same order; 0 is below every number.
__device__ __forceinline__ std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
/// Two bf16 in one register, `low` in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
/// NOTE: converts a pair and takes its upper half: converting one alone takes several times as
/// long.
__device__ __forceinline__ float round_bf16(float value) {
  return __uint_as_float(pack_bf16(0.0F, value));
}
/// The same as pack_bf16() for f16.
__device__ __forceinline__ std::uint32_t pack_f16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
/// Multiplies two pairs of bf16, each rounded once.
__device__ __forceinline__ std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
/// Two bf16 as two f16: exact from 2^-17 to 65,504.
__device__ __forceinline__ std::uint32_t bf16_to_f16(std::uint32_t two) {
  return pack_f16(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000U));
}
__device__ __forceinline__ std::uint8_t to_e4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ float from_e4m3(std::uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(__half(half));
}
/// The scale of a row or block whose largest magnitude is `largest`.
__device__ __forceinline__ float quant_scale(float largest) {
  return fmaxf(largest / kE4m3Max, kScaleMin);
}
/// Four e4m3 values in one register, the first in the lowest byte.
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return low | (high << 16U);
}
/// Divides bf16 numbers by one finite positive `scale` to the bits of a division, in three
/// instructions instead of a dozen: for all 2^30 pairs of their digits multiplication by the
/// inverse, corrected by what it leaves, is the rounded quotient. Where that is subnormal it may be
/// another one as small.
struct Divisor {
  float scale;
  float inverse;

  __device__ __forceinline__ explicit Divisor(float by) : scale(by), inverse(1.0F / by) {}
  __device__ __forceinline__ float quotient(float value) const {
    const float near = __fmul_rn(value, inverse);
    // NOTE: negates the remainder twice, so that -0 stays -0.
    return __fmaf_rn(__fmaf_rn(scale, near, -value), -inverse, near);
  }
};
/// Divides by a row's scale. A row that holds an infinity has an infinite scale: its finite values
/// become 0, the infinity NaN.
__device__ __forceinline__ Divisor divisor_of(float scale) {
  Divisor divisor(scale);
  if (scale > FLT_MAX) divisor.scale = 0.0F;
  return divisor;
}
/// 1 / value to one unit in the last place, of normal numbers.
__device__ __forceinline__ float inverse_approximate(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
/// silu(gate) * up with the reference's two roundings to bf16. It uses the exponential that is at
/// most 1, so that no denominator is large; a division that handles large ones costs a jump.
__device__ __forceinline__ float silu_mul(float gate, float up) {
  const float power = expf(-fabsf(gate));
  const float part = gate < 0.0F ? gate * power : gate;
  return round_bf16(round_bf16(part * inverse_approximate(1.0F + power)) * up);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  return value;
}
/// The largest of a warp's magnitudes, none of them NaN; bits of magnitudes compare like integers.
__device__ __forceinline__ float warp_largest(float magnitude) {
  return __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, __float_as_uint(magnitude)));
}

/// Transposes the words of every four lanes: lane j gets word j of all four, in lane order.
__device__ __forceinline__ uint4 quad_transpose(std::uint32_t (&words)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool high = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, high ? words[i] : words[i + 2], 2);
    (high ? words[i] : words[i + 2]) = other;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace koho::cuda
