// SPDX-License-Identifier: Apache-2.0
// The AVX-512 table with dot products of bfloat16 pairs: E4M3 weights and activations, upcast to
// bfloat16 (exact) and multiplied by vdpbf16ps, two columns a lane. Everything else is the AVX-512
// table's. bf16 weights do not come here: the instruction flushes denormals, and products of E4M3
// values have none.
//
// Order of a sum. A step is 64 columns, upcast to two vectors of 16 pairs; a span is eight steps,
// or the 128 columns of a block scale. One vector of f32 lanes takes a span's vectors in turn; the
// spans are added in order, and the lanes in a fixed tree. The order depends on K alone.
//
// Few tokens: weights are upcast in registers, row after row, as memory serves them fastest; a
// span's chain is short enough that the core works on the next span, too. More: weights are upcast
// once for up to 96 tokens, into a block that stays in the L1 cache.
#include <cstddef>
#include <cstdint>
#include <immintrin.h>
#include <type_traits>

#include "cpu/e4m3_upcast.h"
#include "cpu/kernels.h"

namespace koho::cpu {
namespace {

constexpr std::int64_t kStepBytes = 2 * kStep;  // of a step upcast
constexpr std::int64_t kLine = 64;
constexpr int kRowGroup = 4;  // rows whose sums one tree ends
constexpr std::int64_t kSpanColumns = 512;
constexpr std::int64_t kPrefetchBytes = 8192;  // between a line's prefetch and its use

constexpr std::size_t extent(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

__m512 add_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// The lanes' sums of four vectors.
__m128 sum_lanes(const __m512 v[kRowGroup]) {
  // 128-bit quarters: two of each vector, then one of each.
  const __m512 first =
      _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xEE));
  const __m512 second =
      _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xEE));
  const __m512 sums = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88),
                                    _mm512_shuffle_f32x4(first, second, 0xDD));
  const __m512 pairs = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4E));
  const __m512 totals = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xB1));
  const __m512i first_of_quarters =
      _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_quarters, totals));
}

// ---- staging: a token's steps one after the other, each two vectors of bf16 pairs

/// A line more than the steps', so that tokens do not fall on one another's cache sets.
std::int64_t token_bytes(std::int64_t columns) {
  return steps_of(columns) * kStepBytes + kLine;
}

std::int64_t panel_bytes(Format format, std::int64_t columns) {
  if (format != Format::e4m3) return avx512_kernels()->panel_bytes(format, columns);
  return kPanelTokens * token_bytes(columns);
}

void stage(const StageTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->stage(task);
  const Tables tables = load_tables();
  for (std::int64_t t = 0; t < task.count; ++t) {
    std::byte* out = task.panel + t * token_bytes(task.columns);
    const auto* row = static_cast<const std::byte*>(task.rows[t]);
    for (std::int64_t first = 0; first < task.columns; first += kStep, out += kStepBytes) {
      __m512i wide[2];
      upcast(tables, load_quantized(row, first, task.columns), wide);
      _mm512_store_si512(out, wide[0]);
      _mm512_store_si512(out + kLine, wide[1]);
    }
  }
}

const std::byte* token_row(const MultiplyTask& task, std::int64_t t) {
  return task.panels + t / kPanelTokens * task.panel_bytes +
         t % kPanelTokens * token_bytes(task.columns);
}

__m512 block_scale(const MultiplyTask& task, std::int64_t t, std::int64_t block) {
  const std::int64_t blocks = (task.columns + kScaleBlock - 1) / kScaleBlock;
  return _mm512_set1_ps(task.token_scales[t * blocks + block] * task.weight_scales[block]);
}

void store_sums(const MultiplyTask& task,
                std::int64_t row,
                std::int64_t rows,
                std::int64_t token,
                const __m512 sums[kRowGroup]) {
  _mm_mask_storeu_ps(task.sums + token * task.rows + row,
                     static_cast<__mmask8>((1U << static_cast<unsigned>(rows)) - 1U),
                     sum_lanes(sums));
}

// ---- few tokens

constexpr int kDirectTokens = 8;

/// The sums of one row with kTokens tokens of the first panel. `next` is what to prefetch.
template <bool kScaled, int kTokens>
void direct(const Tables& tables,
            const MultiplyTask& task,
            const std::byte* weights,
            const std::byte* next,
            __m512 (*sums)[kRowGroup]) {
  constexpr std::int64_t kSpan = kScaled ? kScaleBlock : kSpanColumns;
  const std::byte* x = task.panels;
  const std::int64_t x_stride = token_bytes(task.columns);
  for (std::int64_t begin = 0; begin < task.columns; begin += kSpan) {
    const std::int64_t end = least(task.columns, begin + kSpan);
    __m512 parts[extent(kTokens)];
    for (int t = 0; t < kTokens; ++t) parts[t] = _mm512_setzero_ps();
    const auto add_step = [&](std::int64_t first, __m512i quantized) {
      _mm_prefetch(reinterpret_cast<const char*>(next + first), _MM_HINT_T0);
      __m512i wide[2];
      upcast(tables, quantized, wide);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const std::byte* at = x + t * x_stride + 2 * first;
        parts[t] = add_pairs(parts[t], wide[0], _mm512_load_si512(at));
        parts[t] = add_pairs(parts[t], wide[1], _mm512_load_si512(at + kLine));
      }
    };
    std::int64_t first = begin;
    for (; first + kStep <= end; first += kStep)
      add_step(first, _mm512_loadu_si512(weights + first));
    if (first < end) add_step(first, load_quantized(weights, first, end));
    for (int t = 0; t < kTokens; ++t) {
      const __m512 before = begin == 0 ? _mm512_setzero_ps() : sums[t][0];
      sums[t][0] = kScaled ? _mm512_fmadd_ps(parts[t], block_scale(task, t, begin / kSpan), before)
                           : _mm512_add_ps(parts[t], before);
    }
  }
}

template <bool kScaled, int kTokens>
void direct_rows(const Tables& tables, const MultiplyTask& task) {
  const std::int64_t distance = (kPrefetchBytes + task.row_bytes - 1) / task.row_bytes;
  for (std::int64_t row = 0; row < task.rows; row += kRowGroup) {
    __m512 sums[extent(kTokens)][kRowGroup] = {};
    const std::int64_t rows = least(kRowGroup, task.rows - row);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t target = row + r + distance;
      const std::byte* next = target < task.rows
                                  ? task.weight + target * task.row_bytes
                                  : task.next + (target - task.rows) * task.row_bytes;
      direct<kScaled, kTokens>(tables, task, task.weight + (row + r) * task.row_bytes, next,
                               reinterpret_cast<__m512(*)[kRowGroup]>(&sums[0][r]));
    }
    for (int t = 0; t < kTokens; ++t) store_sums(task, row, rows, t, sums[t]);
  }
}

/// Picks the function of `tokens` tokens, 1..kTokens.
template <bool kScaled, int kTokens>
void direct_tokens(const Tables& tables, const MultiplyTask& task) {
  if (task.tokens == kTokens)
    direct_rows<kScaled, kTokens>(tables, task);
  else if constexpr (kTokens > 1)
    direct_tokens<kScaled, kTokens - 1>(tables, task);
}

// ---- more tokens: up to 16 rows times up to 96 tokens, 512 columns at a time

constexpr int kTileTokens = 6;  // 4 rows x 6 tokens of sums, 6 inputs, 1 weight: 31 registers
constexpr std::int64_t kBlockRows = 16;
constexpr std::int64_t kBlockColumns = kSpanColumns;
constexpr std::int64_t kBlockTokens = 96;
constexpr std::int64_t kBlockStride = 2 * kBlockColumns + kLine;

struct BlockScratch {
  __m512 sums[extent(kBlockTokens)][extent(kBlockRows)];
  alignas(64) std::byte upcast[extent(kBlockRows * kBlockStride)];
};

/// sums[t][r] += four upcast rows times kTokens tokens over a span of `steps` steps, with block
/// scales times the token's.
template <bool kScaled, int kTokens>
void tile(const std::byte* weights,
          const std::byte* const* x,
          std::int64_t steps,
          __m512 (*sums)[extent(kBlockRows)],
          const __m512* scales) {
  __m512 parts[extent(kTokens)][kRowGroup];
  for (int t = 0; t < kTokens; ++t)
    for (int r = 0; r < kRowGroup; ++r) parts[t][r] = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < steps * kStepBytes; at += kLine) {
    __m512i inputs[extent(kTokens)];
    for (int t = 0; t < kTokens; ++t) inputs[t] = _mm512_load_si512(x[t] + at);
#pragma GCC unroll 4
    for (int r = 0; r < kRowGroup; ++r) {
      const __m512i weight = _mm512_load_si512(weights + r * kBlockStride + at);
#pragma GCC unroll 6
      for (int t = 0; t < kTokens; ++t) parts[t][r] = add_pairs(parts[t][r], weight, inputs[t]);
    }
  }
  for (int t = 0; t < kTokens; ++t)
    for (int r = 0; r < kRowGroup; ++r)
      sums[t][r] = kScaled ? _mm512_fmadd_ps(parts[t][r], scales[t], sums[t][r])
                           : _mm512_add_ps(parts[t][r], sums[t][r]);
}

/// Picks the tile of `tokens` tokens, 1..kTokens.
template <bool kScaled, int kTokens>
void tile_tokens(std::int64_t tokens,
                 const std::byte* weights,
                 const std::byte* const* x,
                 std::int64_t steps,
                 __m512 (*sums)[extent(kBlockRows)],
                 const __m512* scales) {
  if (tokens == kTokens)
    tile<kScaled, kTokens>(weights, x, steps, sums, scales);
  else if constexpr (kTokens > 1)
    tile_tokens<kScaled, kTokens - 1>(tokens, weights, x, steps, sums, scales);
}

/// Prefetches the rows that follow, some lines with every tile.
class RowPrefetcher {
 public:
  RowPrefetcher(const std::byte* next, std::int64_t bytes, std::int64_t tiles)
      : next_(next), end_(next + bytes), share_((bytes / kLine + tiles) / tiles * kLine) {}
  void advance() {
    for (std::int64_t i = 0; i < share_ && next_ < end_; i += kLine, next_ += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(next_), _MM_HINT_T1);
  }

 private:
  const std::byte* next_;
  const std::byte* end_;
  std::int64_t share_;
};

template <bool kScaled>
void block(const Tables& tables,
           const MultiplyTask& task,
           std::int64_t row,
           std::int64_t rows,
           std::int64_t token,
           std::int64_t tokens) {
  auto& scratch = *reinterpret_cast<BlockScratch*>(task.scratch);
  const std::int64_t groups = (rows + kRowGroup - 1) / kRowGroup;
  const std::int64_t token_tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const std::int64_t passes = (steps_of(task.columns) * kStep + kBlockColumns - 1) / kBlockColumns;
  RowPrefetcher prefetcher(
      row + kBlockRows < task.rows ? task.weight + (row + kBlockRows) * task.row_bytes : task.next,
      token == 0 ? kBlockRows * task.row_bytes : 0, groups * token_tiles * passes);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t r = 0; r < groups * kRowGroup; ++r) scratch.sums[t][r] = _mm512_setzero_ps();
  for (std::int64_t begin = 0; begin < task.columns; begin += kBlockColumns) {
    const std::int64_t steps = steps_of(least(kBlockColumns, task.columns - begin));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* weights = task.weight + (row + r) * task.row_bytes;
      std::byte* out = scratch.upcast + r * kBlockStride;
      for (std::int64_t step = 0; step < steps; ++step, out += kStepBytes) {
        __m512i wide[2];
        upcast(tables, load_quantized(weights, begin + step * kStep, task.columns), wide);
        _mm512_store_si512(out, wide[0]);
        _mm512_store_si512(out + kLine, wide[1]);
      }
    }
    for (std::int64_t t = 0; t < tokens; t += kTileTokens) {
      const std::int64_t count = least(kTileTokens, tokens - t);
      const std::byte* x[extent(kTileTokens)];
      for (std::int64_t i = 0; i < count; ++i) x[i] = token_row(task, token + t + i) + 2 * begin;
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::byte* weights = scratch.upcast + group * kRowGroup * kBlockStride;
        const auto sums =
            reinterpret_cast<__m512(*)[extent(kBlockRows)]>(&scratch.sums[t][group * kRowGroup]);
        prefetcher.advance();
        if constexpr (!kScaled) {
          tile_tokens<false, kTileTokens>(count, weights, x, steps, sums, nullptr);
          continue;
        }
        const std::byte* x_at[extent(kTileTokens)];
        for (std::int64_t step = 0; step < steps; step += 2) {
          __m512 scales[extent(kTileTokens)];
          for (std::int64_t i = 0; i < count; ++i) {
            x_at[i] = x[i] + step * kStepBytes;
            scales[i] = block_scale(task, token + t + i, (begin + step * kStep) / kScaleBlock);
          }
          tile_tokens<true, kTileTokens>(count, weights + step * kStepBytes, x_at,
                                         least(2, steps - step), sums, scales);
        }
      }
    }
  }
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t r = 0; r < rows; r += kRowGroup)
      store_sums(task, row + r, least(kRowGroup, rows - r), token + t, &scratch.sums[t][r]);
}

template <bool kScaled>
void multiply_as(const MultiplyTask& task) {
  const Tables tables = load_tables();
  if (task.tokens <= kDirectTokens) return direct_tokens<kScaled, kDirectTokens>(tables, task);
  for (std::int64_t row = 0; row < task.rows; row += kBlockRows)
    for (std::int64_t token = 0; token < task.tokens; token += kBlockTokens)
      block<kScaled>(tables, task, row, least(kBlockRows, task.rows - row), token,
                     least(kBlockTokens, task.tokens - token));
}

void multiply(const MultiplyTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->multiply(task);
  return task.token_scales == nullptr ? multiply_as<false>(task) : multiply_as<true>(task);
}

std::int64_t multiply_scratch_bytes(std::int64_t columns) {
  const auto own = static_cast<std::int64_t>(sizeof(BlockScratch));
  const std::int64_t other = avx512_kernels()->multiply_scratch_bytes(columns);
  return own > other ? own : other;
}

}  // namespace

const Kernels* avx512_bf16_kernels() {
  if (avx512_kernels() == nullptr || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512bf16"))
    return nullptr;
  static const Kernels kKernels = [] {
    Kernels kernels = *avx512_kernels();
    kernels.name = "avx512_bf16";
    kernels.panel_bytes = panel_bytes;
    kernels.multiply_scratch_bytes = multiply_scratch_bytes;
    kernels.stage = stage;
    kernels.multiply = multiply;
    return kernels;
  }();
  return &kKernels;
}

}  // namespace koho::cpu
