// SPDX-License-Identifier: Apache-2.0
// The vector inner loops, written once over a vector type V (kernels_avx2.cpp, kernels_avx512.cpp
// define it). Included by those files only: everything here has internal linkage, because each of
// them is compiled for its own instruction set.
//
// Matrices. A sum over k runs along K in one vector of f32 lanes, chunk after chunk, and ends in a
// fixed tree: its order depends on K alone, so a row has the same bits in a step of one token and
// in one of a thousand. A chunk is four vectors ("planes"); which element lies in which lane is the
// weight format's affair (what costs fewest shuffles), and staging lays x out alike. Few tokens:
// weights are widened in registers, four rows abreast. Many: widened once for up to 96 tokens into
// a block that stays in the L1 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/weight_prefetcher.h"

namespace koho::cpu {
namespace {

/// An array's extent.
constexpr std::size_t extent(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

template <typename V>
struct VectorKernels {
  using F = typename V::F;
  static constexpr std::int64_t kLanes = V::kLanes;
  static constexpr std::int64_t kPlanes = 4;
  static constexpr std::int64_t kChunk = kPlanes * kLanes;

  static constexpr std::int64_t round_up_to(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }
  static constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  static constexpr std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

  // ---- chunks

  static constexpr std::int64_t element_bytes(Format format) {
    return format == Format::e4m3 ? 1 : format == Format::bf16 ? 2 : 4;
  }

  /// The factor that widening leaves out of e4m3 weights; staging multiplies x by its inverse.
  static constexpr float kE4M3Factor = 256.0F;

  /// A whole chunk of weights. E4M3 weights come out divided by 256.
  template <Format kFormat>
  static void load_chunk(const std::byte* source, F planes[extent(kPlanes)]) {
    if constexpr (kFormat == Format::e4m3) {
      V::load_e4m3(source, planes);
    } else if constexpr (kFormat == Format::bf16) {
      V::load_bf16(source, planes);
      V::load_bf16(source + 4 * kLanes, planes + 2);
    } else {
      for (std::int64_t p = 0; p < kPlanes; ++p)
        planes[p] = V::load(reinterpret_cast<const float*>(source) + p * kLanes);
    }
  }

  /// The chunk that begins at element `first`, zeros beyond `columns`.
  template <Format kFormat>
  static void load_chunk_at(const std::byte* row,
                            std::int64_t first,
                            std::int64_t columns,
                            F planes[extent(kPlanes)]) {
    constexpr std::int64_t kBytes = element_bytes(kFormat);
    if (first + kChunk <= columns) {
      load_chunk<kFormat>(row + first * kBytes, planes);
      return;
    }
    alignas(64) std::byte padded[extent(kChunk * 4)] = {};
    std::memcpy(padded, row + first * kBytes, static_cast<std::size_t>((columns - first) * kBytes));
    load_chunk<kFormat>(padded, planes);
  }

  // ---- staging: rows of f32 in plane order, padded with zeros to whole chunks

  static std::int64_t panel_bytes(Format, std::int64_t columns) {
    return kPanelTokens * round_up_to(columns, kChunk) * static_cast<std::int64_t>(sizeof(float));
  }

  template <Format kFormat>
  static void stage_rows(const StageTask& task) {
    const std::int64_t stride = round_up_to(task.columns, kChunk);
    for (std::int64_t t = 0; t < task.count; ++t) {
      float* out = reinterpret_cast<float*>(task.panel) + t * stride;
      const std::byte* row = static_cast<const std::byte*>(task.rows[t]);
      for (std::int64_t first = 0; first < task.columns; first += kChunk) {
        F planes[extent(kPlanes)];
        load_chunk_at<kFormat>(row, first, task.columns, planes);
        for (std::int64_t p = 0; p < kPlanes; ++p) {
          if constexpr (kFormat == Format::e4m3)
            planes[p] = V::mul(planes[p], V::set1(kE4M3Factor * kE4M3Factor));
          V::store(out + first + p * kLanes, planes[p]);
        }
      }
    }
  }

  /// bf16 rows in their natural order, for f32 weights.
  static void stage_natural(const StageTask& task) {
    const std::int64_t stride = round_up_to(task.columns, kChunk);
    for (std::int64_t t = 0; t < task.count; ++t) {
      float* out = reinterpret_cast<float*>(task.panel) + t * stride;
      const BFloat16* row = static_cast<const BFloat16*>(task.rows[t]);
      for (std::int64_t first = 0; first < stride; first += kLanes)
        V::store(out + first, load_bf16_at(row, first, task.columns));
    }
  }

  static void stage(const StageTask& task) {
    if (task.format == Format::e4m3)
      stage_rows<Format::e4m3>(task);
    else if (task.format == Format::bf16)
      stage_rows<Format::bf16>(task);
    else
      stage_natural(task);
  }

  // ---- multiplication

  static constexpr std::int64_t kDirectTokens = 2;
  static constexpr std::int64_t kTileRows = 4;
  static constexpr std::int64_t kTileTokens = V::kTileTokens;
  static constexpr std::int64_t kBlockRows = 16;      // widened at once
  static constexpr std::int64_t kBlockColumns = 256;  // widened at once: 16 KiB with kBlockRows
  static constexpr std::int64_t kBlockTokens = 96;    // per widening
  static_assert(kScaleBlock % kChunk == 0 && kBlockColumns % kScaleBlock == 0);

  static std::int64_t multiply_scratch_bytes(std::int64_t) {
    return kBlockRows * (kBlockColumns * static_cast<std::int64_t>(sizeof(float)) +
                         kBlockTokens * static_cast<std::int64_t>(sizeof(F)));
  }

  static const float* token_row(const MultiplyTask& task, std::int64_t t) {
    return reinterpret_cast<const float*>(task.panels + t / kPanelTokens * task.panel_bytes) +
           t % kPanelTokens * round_up_to(task.columns, kChunk);
  }

  static float block_scale(const MultiplyTask& task, std::int64_t t, std::int64_t block) {
    const std::int64_t blocks = (task.columns + kScaleBlock - 1) / kScaleBlock;
    return task.token_scales[t * blocks + block] * task.weight_scales[block];
  }

  /// kRows rows times kTokens tokens, weights widened in registers.
  template <Format kFormat, bool kScaled, int kRows, int kTokens>
  static void direct(const MultiplyTask& task,
                     std::int64_t row,
                     std::int64_t token,
                     WeightPrefetcher& prefetcher) {
    const std::byte* weights[extent(kRows)];
    const float* x[extent(kTokens)];
    for (int r = 0; r < kRows; ++r) weights[r] = task.weight + (row + r) * task.row_bytes;
    for (int t = 0; t < kTokens; ++t) x[t] = token_row(task, token + t);
    F sums[extent(kRows)][extent(kTokens)];
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t) sums[r][t] = V::zero();
    const std::int64_t step = kScaled ? kScaleBlock : task.columns;
    for (std::int64_t begin = 0; begin < task.columns; begin += step) {
      const std::int64_t end = least(task.columns, begin + step);
      F parts[extent(kRows)][extent(kTokens)];
      for (int r = 0; r < kRows; ++r)
        for (int t = 0; t < kTokens; ++t) parts[r][t] = V::zero();
      const auto add_chunk = [&](std::int64_t first, auto load) {
        prefetcher.advance(kRows * kChunk * element_bytes(kFormat));
        for (int r = 0; r < kRows; ++r) {
          F planes[extent(kPlanes)];
          load(weights[r], first, planes);
          for (int t = 0; t < kTokens; ++t)
            for (std::int64_t p = 0; p < kPlanes; ++p)
              parts[r][t] = V::fma(planes[p], V::load(x[t] + first + p * kLanes), parts[r][t]);
        }
      };
      std::int64_t first = begin;
      for (; first + kChunk <= end; first += kChunk)
        add_chunk(first, [](const std::byte* weight, std::int64_t at, F* planes) {
          load_chunk<kFormat>(weight + at * element_bytes(kFormat), planes);
        });
      if (first < end)
        add_chunk(first, [&](const std::byte* weight, std::int64_t at, F* planes) {
          load_chunk_at<kFormat>(weight, at, task.columns, planes);
        });
      for (int r = 0; r < kRows; ++r)
        for (int t = 0; t < kTokens; ++t)
          sums[r][t] = kScaled ? V::fma(parts[r][t],
                                        V::set1(block_scale(task, token + t, begin / kScaleBlock)),
                                        sums[r][t])
                               : parts[r][t];
    }
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t)
        task.sums[(token + t) * task.rows + row + r] = V::sum(sums[r][t]);
  }

  template <Format kFormat, bool kScaled, int kTokens>
  static void direct_rows(const MultiplyTask& task, std::int64_t token) {
    std::int64_t row = 0;
    WeightPrefetcher prefetcher(task, 0, task.rows);
    for (; row + kTileRows <= task.rows; row += kTileRows)
      direct<kFormat, kScaled, kTileRows, kTokens>(task, row, token, prefetcher);
    for (; row < task.rows; ++row)
      direct<kFormat, kScaled, 1, kTokens>(task, row, token, prefetcher);
  }

  /// sums[r][t] += widened rows times tokens over `columns` columns, a multiple of the chunk.
  /// `sum_stride` vectors lie between the sums of two rows.
  template <int kRows, int kTokens>
  static void tile(const float* weights,
                   const float* const* x,
                   std::int64_t columns,
                   F* sums,
                   std::int64_t sum_stride,
                   const float* scales) {
    F parts[extent(kRows)][extent(kTokens)];
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t)
        parts[r][t] = scales == nullptr ? sums[r * sum_stride + t] : V::zero();
    for (std::int64_t k = 0; k < columns; k += kLanes) {
      F inputs[extent(kTokens)];
      for (int t = 0; t < kTokens; ++t) inputs[t] = V::load(x[t] + k);
      for (int r = 0; r < kRows; ++r) {
        const F weight = V::load(weights + r * kBlockColumns + k);
        for (int t = 0; t < kTokens; ++t) parts[r][t] = V::fma(weight, inputs[t], parts[r][t]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t)
        sums[r * sum_stride + t] =
            scales == nullptr ? parts[r][t]
                              : V::fma(parts[r][t], V::set1(scales[t]), sums[r * sum_stride + t]);
  }

  template <int kTokens>
  static void tile_rows(const float* weights,
                        std::int64_t rows,
                        const float* const* x,
                        std::int64_t columns,
                        F* sums,
                        const float* scales) {
    std::int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)
      tile<kTileRows, kTokens>(weights + row * kBlockColumns, x, columns, sums + row * kBlockTokens,
                               kBlockTokens, scales);
    for (; row < rows; ++row)
      tile<1, kTokens>(weights + row * kBlockColumns, x, columns, sums + row * kBlockTokens,
                       kBlockTokens, scales);
  }

  /// Picks the tile of `tokens` tokens, 1..kTileTokens.
  template <int kTokens>
  static void tile_tokens(std::int64_t tokens,
                          const float* weights,
                          std::int64_t rows,
                          const float* const* x,
                          std::int64_t columns,
                          F* sums,
                          const float* scales) {
    if (tokens == kTokens)
      tile_rows<kTokens>(weights, rows, x, columns, sums, scales);
    else if constexpr (kTokens > 1)
      tile_tokens<kTokens - 1>(tokens, weights, rows, x, columns, sums, scales);
  }

  /// Up to 16 rows times up to 96 tokens.
  template <Format kFormat, bool kScaled>
  static void block(const MultiplyTask& task,
                    std::int64_t row,
                    std::int64_t rows,
                    std::int64_t token,
                    std::int64_t tokens) {
    F* sums = reinterpret_cast<F*>(task.scratch);  // [16][96]
    float* widened = reinterpret_cast<float*>(sums + kBlockRows * kBlockTokens);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t t = 0; t < tokens; ++t) sums[r * kBlockTokens + t] = V::zero();
    constexpr std::int64_t kStep = kScaled ? kScaleBlock : kBlockColumns;
    for (std::int64_t begin = 0; begin < task.columns; begin += kStep) {
      const std::int64_t columns = round_up_to(least(kStep, task.columns - begin), kChunk);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t first = 0; first < columns; first += kChunk) {
          F planes[extent(kPlanes)];
          load_chunk_at<kFormat>(task.weight + (row + r) * task.row_bytes, begin + first,
                                 task.columns, planes);
          for (std::int64_t p = 0; p < kPlanes; ++p)
            V::store(widened + r * kBlockColumns + first + p * kLanes, planes[p]);
        }
      }
      for (std::int64_t t = 0; t < tokens; t += kTileTokens) {
        const std::int64_t count = least(kTileTokens, tokens - t);
        const float* x[extent(kTileTokens)];
        float scales[extent(kTileTokens)];
        for (std::int64_t i = 0; i < count; ++i) {
          x[i] = token_row(task, token + t + i) + begin;
          if (kScaled) scales[i] = block_scale(task, token + t + i, begin / kScaleBlock);
        }
        tile_tokens<kTileTokens>(count, widened, rows, x, columns, sums + t,
                                 kScaled ? scales : nullptr);
      }
    }
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t r = 0; r < rows; ++r)
        task.sums[(token + t) * task.rows + row + r] = V::sum(sums[r * kBlockTokens + t]);
  }

  template <Format kFormat, bool kScaled>
  static void multiply_as(const MultiplyTask& task) {
    if (task.tokens == 1) return direct_rows<kFormat, kScaled, 1>(task, 0);
    if (task.tokens == 2) return direct_rows<kFormat, kScaled, 2>(task, 0);
    for (std::int64_t row = 0; row < task.rows; row += kBlockRows)
      for (std::int64_t token = 0; token < task.tokens; token += kBlockTokens)
        block<kFormat, kScaled>(task, row, least(kBlockRows, task.rows - row), token,
                                least(kBlockTokens, task.tokens - token));
  }

  static void multiply(const MultiplyTask& task) {
    if (task.format == Format::bf16)
      multiply_as<Format::bf16, false>(task);
    else if (task.format == Format::f32)
      multiply_as<Format::f32, false>(task);
    else if (task.token_scales == nullptr)
      multiply_as<Format::e4m3, false>(task);
    else
      multiply_as<Format::e4m3, true>(task);
  }

  static void store(const StoreTask& task) {
    for (std::int64_t t = 0; t < task.tokens; ++t) {
      const float* sums = task.sums + t * task.rows;
      for (std::int64_t n = 0; n < task.rows; n += kLanes) {
        const std::int64_t count = least(kLanes, task.rows - n);
        F value = load_f32(sums + n, count);
        if (task.weight_scales != nullptr)
          value = V::mul(V::set1(task.token_scales[t]),
                         V::mul(load_f32(task.weight_scales + n, count), value));
        if (task.bias != nullptr) value = V::add(value, load_f32(task.bias + n, count));
        if (task.out_f32 != nullptr)
          store_f32(task.out_f32 + t * task.out_stride + n, value, count);
        else
          store_bf16(task.out_bf16 + t * task.out_stride + n, value, count);
      }
    }
  }

  // ---- rows: a last, partial vector goes through a buffer

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

  // ---- attention
  //
  // Rows are (token, query head) pairs of one kv head. Page by page: keys are widened to f32, a
  // row's 64 scores are dot products along D, its running maximum and sum are carried on, and its
  // output accumulates key after key. Each row does the same arithmetic whichever rows are with it.

  static constexpr std::int64_t kPageKeys = 64;
  static constexpr std::int64_t kAttendRows = 64;  // at once
  static constexpr std::int64_t kValueVectors = V::kValueVectors;

  struct AttendState {
    float* q;        // [rows][width padded]
    float* sums;     // [rows][width padded]
    float* page;     // [64][width padded]
    float* scores;   // [rows][64]
    float* maximum;  // [rows]
    float* total;    // [rows]
    std::int64_t width;
  };

  static std::int64_t attend_scratch_bytes(std::int64_t width) {
    const std::int64_t padded = round_up_to(width, kLanes * kValueVectors);
    return static_cast<std::int64_t>(sizeof(float)) *
           ((2 * kAttendRows + kPageKeys) * padded + kAttendRows * (kPageKeys + 2) + 64);
  }

  static AttendState attend_state(const AttendTask& task) {
    AttendState state;
    state.width = round_up_to(task.width, kLanes * kValueVectors);
    state.q = reinterpret_cast<float*>(task.scratch);
    state.sums = state.q + kAttendRows * state.width;
    state.page = state.sums + kAttendRows * state.width;
    state.scores = state.page + kPageKeys * state.width;
    state.maximum = state.scores + kAttendRows * kPageKeys;
    state.total = state.maximum + kAttendRows;
    return state;
  }

  /// `keys` rows of a page as f32, padded with zeros.
  static void widen_page(const AttendTask& task,
                         const AttendState& state,
                         const std::byte* cache,
                         std::int64_t page,
                         std::int64_t keys) {
    for (std::int64_t key = 0; key < keys; ++key) {
      const std::int64_t at = page * task.page_stride + key * task.width;
      float* out = state.page + key * state.width;
      for (std::int64_t d = 0; d < state.width; d += kLanes) {
        const std::int64_t count = task.width - d;
        F value = V::zero();
        if (count > 0)
          value = task.k_scales == nullptr
                      ? load_bf16(reinterpret_cast<const BFloat16*>(cache) + at + d, count)
                      : load_e4m3(reinterpret_cast<const Float8E4M3*>(cache) + at + d, count);
        V::store(out + d, value);
      }
    }
  }
  static F load_e4m3(const Float8E4M3* source, std::int64_t count) {
    if (count >= kLanes) return V::from_e4m3(source);
    Float8E4M3 padded[extent(kLanes)] = {};
    std::memcpy(padded, source, static_cast<std::size_t>(count));
    return V::from_e4m3(padded);
  }

  /// Dot products of kRows queries with the first `keys` keys of the page.
  template <int kRows>
  static void score_rows(const AttendState& state, std::int64_t row, std::int64_t keys) {
    const float* q = state.q + row * state.width;
    float* scores = state.scores + row * kPageKeys;
    for (std::int64_t key = 0; key < keys; ++key) {
      const float* k = state.page + key * state.width;
      F sums[extent(kRows)];
      for (int r = 0; r < kRows; ++r) sums[r] = V::zero();
      for (std::int64_t d = 0; d < state.width; d += kLanes) {
        const F value = V::load(k + d);
        for (int r = 0; r < kRows; ++r)
          sums[r] = V::fma(value, V::load(q + r * state.width + d), sums[r]);
      }
      for (int r = 0; r < kRows; ++r) scores[r * kPageKeys + key] = V::sum(sums[r]);
    }
  }

  /// Turns one row's scores into shares of its softmax and shrinks what it summed so far.
  static void softmax_row(const AttendTask& task,
                          const AttendState& state,
                          std::int64_t row,
                          std::int64_t page,
                          std::int64_t keys) {
    float* scores = state.scores + row * kPageKeys;
    const float* k_scales =
        task.k_scales == nullptr ? nullptr : task.k_scales + page * task.scale_page_stride;
    const F minus_infinity = V::set1(-__builtin_inff());
    F largest = minus_infinity;
    for (std::int64_t i = 0; i < kPageKeys; i += kLanes) {
      F score = minus_infinity;
      if (i < keys) {
        score = V::mul(load_f32(scores + i, keys - i), V::set1(task.scale));
        if (k_scales != nullptr) score = V::mul(score, load_f32(k_scales + i, keys - i));
        score = V::first_lanes(score, keys - i, minus_infinity);
      }
      largest = V::max_ignoring_nan(score, largest);
      V::store(scores + i, score);
    }
    const float before = state.maximum[row];
    const float page_largest = V::max_of(largest);
    const float maximum = page_largest > before ? page_largest : before;
    float shrink = 1.0F;
    if (maximum != before) {
      float lanes[extent(kLanes)];
      V::store(lanes, exp(V::set1(before - maximum)));
      shrink = lanes[0];
    }
    F total = V::zero();
    for (std::int64_t i = 0; i < kPageKeys; i += kLanes) {
      const F share = exp(V::sub(V::load(scores + i), V::set1(maximum)));
      total = V::add(total, V::first_lanes(share, keys - i, V::zero()));
      V::store(scores + i, share);
    }
    state.maximum[row] = maximum;
    state.total[row] = state.total[row] * shrink + V::sum(total);
    if (task.v_scales != nullptr) {
      const float* v_scales = task.v_scales + page * task.scale_page_stride;
      for (std::int64_t i = 0; i < keys; ++i) scores[i] *= v_scales[i];
    }
    if (shrink == 1.0F) return;
    float* sums = state.sums + row * state.width;
    for (std::int64_t d = 0; d < state.width; d += kLanes)
      V::store(sums + d, V::mul(V::load(sums + d), V::set1(shrink)));
  }

  /// sums += shares of keys first..end-1 times the page's values.
  template <int kRows>
  static void accumulate(const AttendState& state,
                         std::int64_t row,
                         std::int64_t first,
                         std::int64_t end) {
    const float* shares = state.scores + row * kPageKeys;
    for (std::int64_t d = 0; d < state.width; d += kLanes * kValueVectors) {
      float* sums = state.sums + row * state.width + d;
      F parts[extent(kRows)][extent(kValueVectors)];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kValueVectors; ++v)
          parts[r][v] = V::load(sums + r * state.width + v * kLanes);
      for (std::int64_t key = first; key < end; ++key) {
        const float* value = state.page + key * state.width + d;
        F values[extent(kValueVectors)];
        for (int v = 0; v < kValueVectors; ++v) values[v] = V::load(value + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const F share = V::set1(shares[r * kPageKeys + key]);
          for (int v = 0; v < kValueVectors; ++v)
            parts[r][v] = V::fma(share, values[v], parts[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kValueVectors; ++v)
          V::store(sums + r * state.width + v * kLanes, parts[r][v]);
    }
  }

  /// Keys of the page at `first` that row `row` of the task sees.
  static std::int64_t keys_of(const AttendTask& task, std::int64_t row, std::int64_t first) {
    return most(0, least(kPageKeys, task.visible[row / task.group] - first));
  }

  static void attend_page(const AttendTask& task,
                          const AttendState& state,
                          std::int64_t row0,
                          std::int64_t rows,
                          std::int64_t first) {
    constexpr int kRows = 4;
    const std::int64_t page = task.pages[first / kPageKeys];
    // visible[] never falls from token to token, so a run's last row sees most.
    const std::int64_t keys = keys_of(task, row0 + rows - 1, first);
    widen_page(task, state, task.k, page, keys);
    std::int64_t row = 0;
    for (; row + kRows <= rows; row += kRows)
      score_rows<kRows>(state, row, keys_of(task, row0 + row + kRows - 1, first));
    for (; row < rows; ++row) score_rows<1>(state, row, keys_of(task, row0 + row, first));
    for (row = 0; row < rows; ++row)
      if (keys_of(task, row0 + row, first) > 0)
        softmax_row(task, state, row, page, keys_of(task, row0 + row, first));
    widen_page(task, state, task.v, page, keys);
    for (row = 0; row + kRows <= rows; row += kRows) {
      const std::int64_t common = keys_of(task, row0 + row, first);
      accumulate<kRows>(state, row, 0, common);
      for (std::int64_t r = row + 1; r < row + kRows; ++r)
        accumulate<1>(state, r, common, keys_of(task, row0 + r, first));
    }
    for (; row < rows; ++row) accumulate<1>(state, row, 0, keys_of(task, row0 + row, first));
  }

  static void attend(const AttendTask& task) {
    const AttendState state = attend_state(task);
    const std::int64_t all_rows = task.tokens * task.group;
    for (std::int64_t row0 = 0; row0 < all_rows; row0 += kAttendRows) {
      const std::int64_t rows = least(kAttendRows, all_rows - row0);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t token = (row0 + row) / task.group;
        const BFloat16* q = task.q + token * task.q_stride + (row0 + row) % task.group * task.width;
        for (std::int64_t d = 0; d < state.width; d += kLanes) {
          V::store(state.q + row * state.width + d, load_bf16_at(q, d, task.width));
          V::store(state.sums + row * state.width + d, V::zero());
        }
        state.maximum[row] = -__builtin_inff();
        state.total[row] = 0.0F;
      }
      const std::int64_t visible = task.visible[(row0 + rows - 1) / task.group];
      for (std::int64_t first = 0; first < visible; first += kPageKeys)
        attend_page(task, state, row0, rows, first);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t token = (row0 + row) / task.group;
        BFloat16* out = task.out + token * task.out_stride + (row0 + row) % task.group * task.width;
        const F total = V::set1(state.total[row]);
        for (std::int64_t d = 0; d < task.width; d += kLanes)
          store_bf16(out + d, V::div(V::load(state.sums + row * state.width + d), total),
                     task.width - d);
      }
    }
  }

  static constexpr Kernels table(const char* name) {
    return {.name = name,
            .panel_bytes = panel_bytes,
            .multiply_scratch_bytes = multiply_scratch_bytes,
            .stage = stage,
            .multiply = multiply,
            .store = store,
            .add_row = add_row,
            .norm_row = norm_row,
            .quantize_row = quantize_row,
            .silu_mul_row = silu_mul_row,
            .rotate_row = rotate_row,
            .add_weighted_row = add_weighted_row,
            .round_row = round_row,
            .attend_scratch_bytes = attend_scratch_bytes,
            .attend = attend};
  }
};

}  // namespace
}  // namespace koho::cpu
