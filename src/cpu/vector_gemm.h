// SPDX-License-Identifier: Apache-2.0
// The vector kernels' GEMM: weights of E4M3, bf16 or f32 times staged token rows, and the epilogue.
// Included through vector_kernels.h.
//
// A sum runs along K in one vector of f32 lanes, chunk after chunk, and ends in a fixed tree. Its
// order depends on K alone, so a row has the same bits in a step of one token and in one of a
// thousand. A chunk is four vectors ("planes"). Which element lies in which lane depends on the
// weight's format, whatever costs the fewest shuffles; staging lays x out in the same way.
//
// Up to two tokens: weights are upcast in registers, four rows at a time. More: weights are
// upcast once for up to 96 tokens, into a block that stays in the L1 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/vector_rows.h"

namespace koho::cpu {
namespace {

template <typename V>
struct VectorGemm : VectorRows<V> {
  using Rows = VectorRows<V>;
  using Rows::kChunk;
  using Rows::kLanes;
  using Rows::kPlanes;
  using Rows::least;
  using Rows::load_bf16_at;
  using Rows::load_f32;
  using Rows::round_up_to;
  using Rows::store_bf16;
  using Rows::store_f32;
  using typename Rows::F;
  using Prefetcher = typename V::Prefetcher;

  // ---- chunks

  static constexpr std::int64_t element_bytes(Format format) {
    return format == Format::e4m3 ? 1 : format == Format::bf16 ? 2 : 4;
  }

  /// The factor that upcasting leaves out of e4m3 weights; staging multiplies x by its inverse.
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
  static constexpr std::int64_t kBlockRows = 16;      // upcast at once
  static constexpr std::int64_t kBlockColumns = 256;  // upcast at once: 16 KiB with kBlockRows
  static constexpr std::int64_t kBlockTokens = 96;    // per upcasting
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

  /// kRows rows times kTokens tokens, weights upcast in registers.
  template <Format kFormat, bool kScaled, int kRows, int kTokens>
  static void direct(const MultiplyTask& task,
                     std::int64_t row,
                     std::int64_t token,
                     Prefetcher& prefetcher) {
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
    Prefetcher prefetcher(task, 0, task.rows);
    for (; row + kTileRows <= task.rows; row += kTileRows)
      direct<kFormat, kScaled, kTileRows, kTokens>(task, row, token, prefetcher);
    for (; row < task.rows; ++row)
      direct<kFormat, kScaled, 1, kTokens>(task, row, token, prefetcher);
  }

  /// sums[r][t] += upcast rows times tokens over `columns` columns, a multiple of the chunk.
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
    float* upcast = reinterpret_cast<float*>(sums + kBlockRows * kBlockTokens);
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
            V::store(upcast + r * kBlockColumns + first + p * kLanes, planes[p]);
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
        tile_tokens<kTileTokens>(count, upcast, rows, x, columns, sums + t,
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
};

}  // namespace
}  // namespace koho::cpu
