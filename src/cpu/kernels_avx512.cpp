// SPDX-License-Identifier: Apache-2.0
// AVX-512 (F, BW, DQ, VL): sixteen f32 lanes; else as kernels_avx2.cpp.
#include <immintrin.h>

#include "cpu/vector_kernels.h"
#include "cpu/weight_prefetcher.h"

namespace koho::cpu {
namespace {

struct Avx512 {
  using F = __m512;
  using Prefetcher = WeightPrefetcher;
  static constexpr std::int64_t kLanes = 16;
  static constexpr int kTileTokens =
      6;  // 4 rows x 6 tokens of sums, 6 inputs, 1 weight: 31 registers
  static constexpr int kValueVectors = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }  // b where either is NaN
  static F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  /// The larger; `b` where a is NaN. Requires: b is no NaN.
  static F max_ignoring_nan(F a, F b) { return _mm512_max_ps(a, b); }
  static F abs(F x) { return _mm512_abs_ps(x); }
  static F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  static float sum(F x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 eighth = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(eighth, _mm_movehdup_ps(eighth)));
  }
  static float max_of(F x) { return _mm512_reduce_max_ps(x); }

  static __mmask16 mask_of(std::int64_t count) {
    return count <= 0        ? __mmask16{0}
           : count >= kLanes ? __mmask16{0xFFFF}
                             : static_cast<__mmask16>((1U << count) - 1U);
  }
  /// Lanes 0..count-1 of x, `other` in the rest.
  static F first_lanes(F x, std::int64_t count, F other) {
    return _mm512_mask_blend_ps(mask_of(count), other, x);
  }
  /// y, but 0 where x < low and infinity where x > high.
  static F replace_outside(F y, F x, F low, F high) {
    const __mmask16 above = _mm512_cmp_ps_mask(x, high, _CMP_GT_OQ);
    const __mmask16 below = _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ);
    const F result = _mm512_mask_blend_ps(above, y, set1(__builtin_inff()));
    return _mm512_mask_blend_ps(below, result, zero());
  }
  /// y * 2^n for integers n in -127..128.
  static F mul_power_of_two(F y, F n) { return _mm512_scalef_ps(y, n); }

  static F from_bf16(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  /// The bf16 of each lane in its upper half: nearest even, NaN quiet.
  static __m512i bf16_bits(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  }
  static F round_bf16(F x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(bf16_bits(x), _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  static void to_bf16(BFloat16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(x), 16)));
  }

  /// As to_e4m3 of tensor/number.h.
  static void to_e4m3(Float8E4M3* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const F magnitude = abs(x);
    const __m512i absolute = _mm512_castps_si512(magnitude);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(absolute, 20), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(absolute, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF)));
    __m512i fp8 = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
    fp8 = _mm512_mask_sub_epi32(fp8, _mm512_cmp_ps_mask(magnitude, set1(0x1p-6F), _CMP_LT_OQ),
                                _mm512_castps_si512(add(magnitude, set1(0x1p14F))),
                                _mm512_castps_si512(set1(0x1p14F)));
    fp8 = _mm512_mask_mov_epi32(fp8, _mm512_cmp_ps_mask(magnitude, set1(448.0F), _CMP_GE_OQ),
                                _mm512_set1_epi32(0x7E));
    fp8 =
        _mm512_mask_mov_epi32(fp8, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7F));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm512_cvtepi32_epi8(_mm512_or_si512(fp8, sign)));
  }

  /// 32 FP8 values, each in the upper byte of a 16-bit lane, as half-precision bits divided by 2^8.
  static __m512i half_bits(__m512i upper) {
    return _mm512_and_si512(_mm512_srai_epi16(upper, 1),
                            _mm512_set1_epi16(static_cast<short>(0xBF80)));
  }

  static F from_e4m3(const Float8E4M3* p) {
    const __m128i quantized = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i upper = _mm256_slli_epi16(_mm256_cvtepu8_epi16(quantized), 8);
    const __m256i bits = _mm256_and_si256(_mm256_srai_epi16(upper, 1),
                                          _mm256_set1_epi16(static_cast<short>(0xBF80)));
    const F value = mul(_mm512_cvtph_ps(bits), set1(256.0F));
    const __m128i magnitude_mask = _mm_set1_epi8(0x7F);
    const __mmask16 nan =
        _mm_cmpeq_epi8_mask(_mm_and_si128(quantized, magnitude_mask), magnitude_mask);
    return _mm512_mask_blend_ps(nan, value, set1(__builtin_nanf("")));
  }

  /// 64 FP8 values: even ones in planes 0 and 1, odd ones in 2 and 3, divided by 2^8.
  static void load_e4m3(const std::byte* source, F planes[4]) {
    const __m512i quantized = _mm512_loadu_si512(source);
    const __m512i even = half_bits(_mm512_slli_epi16(quantized, 8));
    const __m512i odd = half_bits(quantized);
    planes[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(even));
    planes[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(even, 1));
    planes[2] = _mm512_cvtph_ps(_mm512_castsi512_si256(odd));
    planes[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(odd, 1));
    const __m512i magnitude_mask = _mm512_set1_epi8(0x7F);
    const __mmask64 nan =
        _mm512_cmpeq_epi8_mask(_mm512_and_si512(quantized, magnitude_mask), magnitude_mask);
    if (__builtin_expect(nan != 0, 0)) put_nans(_mm512_movm_epi8(nan), planes);
  }
  __attribute__((noinline)) static void put_nans(__m512i nan, F planes[4]) {
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(nan, 8), 8);
    const __m512i odd = _mm512_srai_epi16(nan, 8);
    const auto put = [](F& plane, __m256i words) {
      plane = _mm512_or_ps(plane, _mm512_castsi512_ps(_mm512_cvtepi16_epi32(words)));
    };
    put(planes[0], _mm512_castsi512_si256(even));
    put(planes[1], _mm512_extracti64x4_epi64(even, 1));
    put(planes[2], _mm512_castsi512_si256(odd));
    put(planes[3], _mm512_extracti64x4_epi64(odd, 1));
  }

  /// 32 bf16: even ones in plane 0, odd ones in plane 1.
  static void load_bf16(const std::byte* source, F planes[2]) {
    const __m512i pairs = _mm512_loadu_si512(source);
    planes[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    planes[1] = _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
};

constexpr Kernels kKernels = VectorKernels<Avx512>::table("avx512");

}  // namespace

const Kernels* avx512_kernels() {
  // Every CPU with these has f16c, which clang 14 cannot ask for.
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("fma");
  return supported ? &kKernels : nullptr;
}

}  // namespace koho::cpu
