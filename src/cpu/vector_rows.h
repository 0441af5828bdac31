// SPDX-License-Identifier: Apache-2.0
// The vector kernels' loops over rows: norm, quantisation, SwiGLU, RoPE, the experts' combine; and
// the loads and stores that all vector kernels share. Included through vector_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"

namespace koho::cpu {
namespace {

/// An array's extent.
constexpr std::size_t extent(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

template <typename V>
struct VectorRows {
  using F = typename V::F;
  static constexpr std::int64_t kLanes = V::kLanes;
  static constexpr std::int64_t kPlanes = 4;
  static constexpr std::int64_t kChunk = kPlanes * kLanes;

  static constexpr std::int64_t round_up_to(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }
  static constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  static constexpr std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

  // ---- partial vectors: the last of a row goes through a buffer

  static F load_f32(const float* source, std::int64_t count) {
    if (count >= kLanes) return V::load(source);
    float padded[extent(kLanes)] = {};
    std::memcpy(padded, source, static_cast<std::size_t>(count) * sizeof(float));
    return V::load(padded);
  }
  static F load_bf16(const BFloat16* source, std::int64_t count) {
    if (count >= kLanes) return V::from_bf16(source);
    BFloat16 padded[extent(kLanes)] = {};
    std::memcpy(padded, source, static_cast<std::size_t>(count) * sizeof(BFloat16));
    return V::from_bf16(padded);
  }
  static F load_bf16_at(const BFloat16* row, std::int64_t first, std::int64_t columns) {
    return first >= columns ? V::zero() : load_bf16(row + first, columns - first);
  }
  static F load_e4m3(const Float8E4M3* source, std::int64_t count) {
    if (count >= kLanes) return V::from_e4m3(source);
    Float8E4M3 padded[extent(kLanes)] = {};
    std::memcpy(padded, source, static_cast<std::size_t>(count));
    return V::from_e4m3(padded);
  }
  static void store_f32(float* target, F value, std::int64_t count) {
    if (count >= kLanes) return V::store(target, value);
    float padded[extent(kLanes)];
    V::store(padded, value);
    std::memcpy(target, padded, static_cast<std::size_t>(count) * sizeof(float));
  }
  static void store_bf16(BFloat16* target, F value, std::int64_t count) {
    if (count >= kLanes) return V::to_bf16(target, value);
    BFloat16 padded[extent(kLanes)];
    V::to_bf16(padded, value);
    std::memcpy(target, padded, static_cast<std::size_t>(count) * sizeof(BFloat16));
  }
  static void store_e4m3(Float8E4M3* target, F value, std::int64_t count) {
    if (count >= kLanes) return V::to_e4m3(target, value);
    Float8E4M3 padded[extent(kLanes)];
    V::to_e4m3(padded, value);
    std::memcpy(target, padded, static_cast<std::size_t>(count));
  }

  // ---- operators on rows

  static void add_row(BFloat16* residual, const BFloat16* block_output, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes)
      store_bf16(residual + i,
                 V::add(load_bf16(residual + i, n - i), load_bf16(block_output + i, n - i)), n - i);
  }

  static void norm_row(
      BFloat16* out, const BFloat16* x, const BFloat16* weight, std::int64_t n, float eps) {
    F squares[extent(kPlanes)] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (std::int64_t i = 0; i < n; i += kChunk)
      for (std::int64_t p = 0; p < kPlanes && i + p * kLanes < n; ++p) {
        const F value = load_bf16(x + i + p * kLanes, n - i - p * kLanes);
        squares[p] = V::fma(value, value, squares[p]);
      }
    const float sum =
        V::sum(V::add(V::add(squares[0], squares[1]), V::add(squares[2], squares[3])));
    const F factor = V::set1(1.0F / __builtin_sqrtf(sum / static_cast<float>(n) + eps));
    for (std::int64_t i = 0; i < n; i += kLanes) {
      F value = V::mul(load_bf16(x + i, n - i), factor);
      if (weight != nullptr) value = V::mul(load_bf16(weight + i, n - i), V::round_bf16(value));
      store_bf16(out + i, value, n - i);
    }
  }

  static float quantize_row(Float8E4M3* quantized,
                            const BFloat16* x,
                            std::int64_t n,
                            float least_scale) {
    F largest = V::zero();
    for (std::int64_t i = 0; i < n; i += kLanes)
      largest = V::max_ignoring_nan(V::abs(load_bf16(x + i, n - i)), largest);
    float scale = V::max_of(largest) / 448.0F;
    if (scale < least_scale) scale = least_scale;
    if (scale == 0.0F) scale = 1.0F;
    const F divisor = V::set1(scale);
    for (std::int64_t i = 0; i < n; i += kLanes)
      store_e4m3(quantized + i, V::div(load_bf16(x + i, n - i), divisor), n - i);
    return scale;
  }

  static void silu_mul_row(BFloat16* out,
                           const BFloat16* gate,
                           const BFloat16* up,
                           std::int64_t n) {
    const F one = V::set1(1.0F);
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const F value = load_bf16(gate + i, n - i);
      const F silu = V::div(value, V::add(one, exp(V::sub(V::zero(), value))));
      store_bf16(out + i, V::mul(V::round_bf16(silu), load_bf16(up + i, n - i)), n - i);
    }
  }

  static void rotate_row(BFloat16* row,
                         const float* cosines,
                         const float* sines,
                         std::int64_t rotary) {
    const std::int64_t half = rotary / 2;
    for (std::int64_t j = 0; j < half; j += kLanes) {
      const std::int64_t count = half - j;
      const F a = load_bf16(row + j, count);
      const F b = load_bf16(row + half + j, count);
      const F cosine = load_f32(cosines + j, count);
      const F sine = load_f32(sines + j, count);
      store_bf16(row + j, V::sub(V::mul(a, cosine), V::mul(b, sine)), count);
      store_bf16(row + half + j, V::add(V::mul(b, cosine), V::mul(a, sine)), count);
    }
  }

  static void add_weighted_row(float* sums, const BFloat16* row, float weight, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes)
      store_f32(sums + i,
                V::fma(V::set1(weight), load_bf16(row + i, n - i), load_f32(sums + i, n - i)),
                n - i);
  }

  static void round_row(BFloat16* out, const float* sums, const BFloat16* shared, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
      F value = load_f32(sums + i, n - i);
      if (shared != nullptr) value = V::add(V::round_bf16(value), load_bf16(shared + i, n - i));
      store_bf16(out + i, value, n - i);
    }
  }

  /// e^x within 2 ulps; 0 below -87.3, infinity above 88.7, NaN stays NaN.
  static F exp(F x) {
    const F low = V::set1(-87.3F);
    const F high = V::set1(88.72283F);
    const F inside = V::min(high, V::max(low, x));  // NaN passes: the second operand wins
    const F n = V::round(V::mul(inside, V::set1(1.44269504F)));
    F r = V::fma(n, V::set1(-0.693359375F), inside);
    r = V::fma(n, V::set1(2.12194440e-4F), r);
    F y = V::set1(1.9875691500e-4F);  // Cephes' expf
    y = V::fma(y, r, V::set1(1.3981999507e-3F));
    y = V::fma(y, r, V::set1(8.3334519073e-3F));
    y = V::fma(y, r, V::set1(4.1665795894e-2F));
    y = V::fma(y, r, V::set1(1.6666665459e-1F));
    y = V::fma(y, r, V::set1(5.0000001201e-1F));
    y = V::add(V::fma(V::mul(y, r), r, r), V::set1(1.0F));
    return V::replace_outside(V::mul_power_of_two(y, n), x, low, high);
  }
};

}  // namespace
}  // namespace koho::cpu
