// SPDX-License-Identifier: Apache-2.0
// Exact upcast of normal E4M3 values to bfloat16, and the order of the AMX kernels' lanes. Included
// by kernels_amx.cpp alone, which is compiled for AVX-512 VBMI and GFNI: everything here has
// internal linkage.
//
// The bfloat16 of a normal value is its bits moved and 120 added to the exponent, and adding 120 to
// 1..15 is linear over bits: one GF(2) affine instruction for each byte of the result. Zeros,
// denormals and NaN are rare in weights; where a span of values holds one, e4m3_upcast.h's tables
// upcast it instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "cpu/e4m3_upcast.h"

namespace koho::cpu {
namespace {

constexpr std::int64_t kSpanSteps = 8;  // steps whose pairs fill tiles
constexpr std::int64_t kSpan = kSpanSteps * kStep;
constexpr std::int64_t kTileRows = 16;  // rows of a weight tile
constexpr std::int64_t kTileBytes = 1024;
constexpr std::int64_t kSpanTokensBytes = kLanes * kTileBytes;  // 512 columns of a panel
constexpr std::int64_t kDirectTokens = 2;                       // most for vectors

constexpr std::int64_t spans_of(std::int64_t columns) {
  return (columns + kSpan - 1) / kSpan;
}

/// The matrix of vgf2p8affineqb whose result bit i is the value's bit bits[i], or 0 for -1.
constexpr std::int64_t bit_matrix(const int (&bits)[8]) {
  std::uint64_t matrix = 0;
  for (int i = 0; i < 8; ++i)
    if (bits[i] >= 0) matrix |= 1ULL << static_cast<unsigned>(8 * (7 - i) + bits[i]);
  return static_cast<std::int64_t>(matrix);
}
// E4M3 is s eeee mmm; bfloat16 s EEEEEEEE mmm0000 with E = e + 120: E's bits 7..4 are those of e's
// bit 3 and three times its complement, then its complement once more, then e's bits 2, 1 and 0.
constexpr std::int64_t kHighMatrix = bit_matrix({4, 5, 6, 6, 6, 6, 6, 7});
constexpr std::int64_t kLowMatrix = bit_matrix({-1, -1, -1, -1, 0, 1, 2, 3});
constexpr int kHighComplement = 0x3C;

/// A vector that the compiler keeps in its register instead of making it anew.
inline __m512i kept(__m512i vector) {
  __asm__("" : "+v"(vector));
  return vector;
}

/// What upcasting normal FP8 values takes.
struct Constants {
  __m512i low = kept(_mm512_set1_epi64(kLowMatrix));
  __m512i high = kept(_mm512_set1_epi64(kHighMatrix));
  __m512i magnitude = kept(_mm512_set1_epi8(0x7F));
  __m512i minus_denormals = kept(_mm512_set1_epi8(-8));
};

/// Per byte, kSpecial or more for a value that is zero, denormal or NaN; less for a normal one.
constexpr int kSpecial = 0x77;
inline __m512i speciality(const Constants& constants, __m512i quantized) {
  return _mm512_add_epi8(_mm512_and_si512(quantized, constants.magnitude),
                         constants.minus_denormals);
}
inline bool any_special(__m512i largest) {
  return _mm512_cmpge_epu8_mask(largest, _mm512_set1_epi8(kSpecial)) != 0;
}

/// Pairs of bfloat16 as f32: the even columns', the odd columns'.
inline __m512 even_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
inline __m512 odd_of(__m512i pairs, __m512i odd_mask) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, odd_mask));
}

/// 64 normal FP8 values.
inline void upcast_normal(const Constants& constants, __m512i quantized, __m512i out[2]) {
  const __m512i low = _mm512_gf2p8affine_epi64_epi8(quantized, constants.low, 0);
  const __m512i high = _mm512_gf2p8affine_epi64_epi8(quantized, constants.high, kHighComplement);
  out[0] = _mm512_unpacklo_epi8(low, high);
  out[1] = _mm512_unpackhi_epi8(low, high);
}

/// A span's eight vectors of FP8 values, so that upcasting vector i yields the pairs of two lanes,
/// each step after step: lane_of(i) and the one after it.
inline void gather_lanes(__m512i quantized[kSpanSteps]) {
  // In every 16 bytes, the pairs of the first vector beside those of the second.
  const __m512i beside =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  __m512i a[4];  // lanes 4q and 4q + 1 of two steps
  __m512i b[4];  // lanes 4q + 2 and 4q + 3
  for (int i = 0; i < 4; ++i) {
    const __m512i first = _mm512_shuffle_epi8(quantized[2 * i], beside);
    const __m512i second = _mm512_shuffle_epi8(quantized[2 * i + 1], beside);
    a[i] = _mm512_unpacklo_epi32(first, second);
    b[i] = _mm512_unpackhi_epi32(first, second);
  }
  const auto turn = [](const __m512i in[4], __m512i* out) {  // 4 x 4 of 16 bytes
    const __m512i even_low = _mm512_shuffle_i32x4(in[0], in[1], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(in[0], in[1], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(in[2], in[3], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(in[2], in[3], 0xDD);
    out[0] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    out[1] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    out[2] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
    out[3] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
  };
  turn(a, quantized);
  turn(b, quantized + 4);
}
constexpr std::int64_t lane_of(std::int64_t vector) {
  return vector % 4 * 4 + vector / 4 * 2;
}

}  // namespace
}  // namespace koho::cpu
