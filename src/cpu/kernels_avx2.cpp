// SPDX-License-Identifier: Apache-2.0
// AVX2, FMA and F16C: eight f32 lanes. E4M3 upcasts to half precision by a shift (a factor of 2^8
// away, denormals included) and from there by the converter.
#include <immintrin.h>

#include "cpu/vector_kernels.h"
#include "cpu/weight_prefetcher.h"

namespace koho::cpu {
namespace {

struct Avx2 {
  using F = __m256;
  using Prefetcher = InOrderPrefetcher;
  static constexpr std::int64_t kLanes = 8;
  static constexpr int kTileTokens =
      3;  // 4 rows x 3 tokens of sums, 3 inputs, 1 weight: 16 registers
  static constexpr int kValueVectors = 2;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }  // b where either is NaN
  static F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
  /// The larger; `b` where a is NaN. Requires: b is no NaN.
  static F max_ignoring_nan(F a, F b) { return _mm256_max_ps(a, b); }
  static F abs(F x) { return _mm256_andnot_ps(set1(-0.0F), x); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static float sum(F x) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static float max_of(F x) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
  }

  /// Lanes 0..count-1 of x, `other` in the rest.
  static F first_lanes(F x, std::int64_t count, F other) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int bounded = count < 0 ? 0 : count > kLanes ? 8 : static_cast<int>(count);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32(bounded), index);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(inside));
  }
  /// y, but 0 where x < low and infinity where x > high.
  static F replace_outside(F y, F x, F low, F high) {
    const F above = _mm256_cmp_ps(x, high, _CMP_GT_OQ);
    const F result = _mm256_blendv_ps(y, set1(__builtin_inff()), above);
    return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), result);
  }
  /// y * 2^n for integers n in -127..128, by two factors that are normal numbers.
  static F mul_power_of_two(F y, F n) {
    const __m256i exponent = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(exponent, 1);
    const auto power = [](__m256i e) {
      return _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return mul(mul(y, power(half)), power(_mm256_sub_epi32(exponent, half)));
  }

  static F from_bf16(const BFloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  /// The bf16 of each lane in its upper half: nearest even, NaN quiet.
  static __m256i bf16_bits(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  static F round_bf16(F x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(bf16_bits(x), _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  static void to_bf16(BFloat16* p, F x) {
    const __m256i words = _mm256_srli_epi32(bf16_bits(x), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }

  /// As to_e4m3 of tensor/number.h.
  static void to_e4m3(Float8E4M3* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const F magnitude = abs(x);
    const __m256i absolute = _mm256_castps_si256(magnitude);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(absolute, 20), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(absolute, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFFF)));
    __m256i fp8 = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    const __m256i denormal = _mm256_sub_epi32(_mm256_castps_si256(add(magnitude, set1(0x1p14F))),
                                              _mm256_castps_si256(set1(0x1p14F)));
    fp8 = _mm256_blendv_epi8(
        fp8, denormal, _mm256_castps_si256(_mm256_cmp_ps(magnitude, set1(0x1p-6F), _CMP_LT_OQ)));
    fp8 =
        _mm256_blendv_epi8(fp8, _mm256_set1_epi32(0x7E),
                           _mm256_castps_si256(_mm256_cmp_ps(magnitude, set1(448.0F), _CMP_GE_OQ)));
    fp8 = _mm256_blendv_epi8(fp8, _mm256_set1_epi32(0x7F),
                             _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    fp8 = _mm256_or_si256(fp8, sign);
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(fp8), _mm256_extracti128_si256(fp8, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }

  /// Sixteen FP8 values, each in the upper byte of a 16-bit lane, as half-precision bits divided by
  /// 2^8.
  static __m256i half_bits(__m256i upper) {
    return _mm256_and_si256(_mm256_srai_epi16(upper, 1),
                            _mm256_set1_epi16(static_cast<short>(0xBF80)));
  }

  static F from_e4m3(const Float8E4M3* p) {
    const __m128i quantized = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i upper = _mm_unpacklo_epi8(_mm_setzero_si128(), quantized);
    const __m128i bits =
        _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(static_cast<short>(0xBF80)));
    const F value = mul(_mm256_cvtph_ps(bits), set1(256.0F));
    const __m256i wide = _mm256_cvtepu8_epi32(quantized);
    const __m256i nan = _mm256_cmpeq_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x7F)),
                                           _mm256_set1_epi32(0x7F));
    return _mm256_or_ps(value, _mm256_castsi256_ps(nan));
  }

  /// 32 FP8 values: even ones in planes 0 and 1, odd ones in 2 and 3, divided by 2^8.
  static void load_e4m3(const std::byte* source, F planes[4]) {
    const __m256i quantized = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    const __m256i even = half_bits(_mm256_slli_epi16(quantized, 8));
    const __m256i odd = half_bits(quantized);
    planes[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(even));
    planes[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(even, 1));
    planes[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(odd));
    planes[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1));
    const __m256i magnitude_mask = _mm256_set1_epi8(0x7F);
    const __m256i nan =
        _mm256_cmpeq_epi8(_mm256_and_si256(quantized, magnitude_mask), magnitude_mask);
    if (__builtin_expect(!_mm256_testz_si256(nan, nan), 0)) put_nans(nan, planes);
  }
  __attribute__((noinline)) static void put_nans(__m256i nan, F planes[4]) {
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(nan, 8), 8);
    const __m256i odd = _mm256_srai_epi16(nan, 8);
    const auto put = [](F& plane, __m128i words) {
      plane = _mm256_or_ps(plane, _mm256_castsi256_ps(_mm256_cvtepi16_epi32(words)));
    };
    put(planes[0], _mm256_castsi256_si128(even));
    put(planes[1], _mm256_extracti128_si256(even, 1));
    put(planes[2], _mm256_castsi256_si128(odd));
    put(planes[3], _mm256_extracti128_si256(odd, 1));
  }

  /// 16 bf16: even ones in plane 0, odd ones in plane 1.
  static void load_bf16(const std::byte* source, F planes[2]) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    planes[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    planes[1] = _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
};

constexpr Kernels kKernels = VectorKernels<Avx2>::table("avx2");

}  // namespace

const Kernels* avx2_kernels() {
  // Every CPU with AVX2 has F16C, which clang 14 cannot ask for.
  const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return supported ? &kKernels : nullptr;
}

}  // namespace koho::cpu
