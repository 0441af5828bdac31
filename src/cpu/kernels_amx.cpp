// SPDX-License-Identifier: Apache-2.0
// AMX: E4M3 weights and activations as bfloat16 (exact) in the tile unit; everything else is the
// AVX-512 table's. A sum takes 32 columns at a step, in the tile unit's own order, for one token
// and for a thousand alike. The tile unit flushes denormals: products of E4M3 codes have none,
// which is why bf16 weights do not come here.
//
// A weight tile holds 16 rows x 32 columns, a token tile 16 pairs of columns x 16 tokens, a sum
// tile 16 rows x 16 tokens of f32. Weights are widened 32 rows x 512 columns at a time into a block
// that stays in the L1 cache, and the memory of the next 32 rows is asked for meanwhile. With more
// than 32 tokens the sums wait in memory while the block meets the others: f32 loses nothing there.
//
// Widening. A normal code's bfloat16 is its bits moved and 120 added to the exponent, and adding
// 120 to 1..15 is linear over bits: one GF(2) product per byte of the result. Zeros, denormals and
// NaN are rare in weights; where 512 codes hold one, two 128-entry byte tables widen them instead.
#include <cpuid.h>
#include <cstring>
#include <immintrin.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/kernels.h"

namespace koho::cpu {
namespace {

constexpr std::int64_t kStep = 64;      // columns widened at once: two tiles
constexpr std::int64_t kTileRows = 16;  // rows of a weight tile
constexpr std::int64_t kTileBytes = 1024;
constexpr std::int64_t kStepTokensBytes = 2 * kTileBytes;  // 64 columns of a panel

constexpr std::int64_t steps_of(std::int64_t columns) {
  return (columns + kStep - 1) / kStep;
}
constexpr std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// ---- widening

/// The bytes of bfloat16 for the 128 magnitudes of E4M3.
struct Tables {
  __m512i low[2];
  __m512i high[2];
};

/// Filled from arithmetic, not from number.h: this file shares no inline function.
struct TableBytes {
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t high[128];
};
constexpr TableBytes make_table_bytes() {
  TableBytes bytes{};
  for (unsigned code = 0; code < 128; ++code) {
    unsigned bits = (code << 4U) + (120U << 7U);
    if (code == 127) bits = 0x7FC0;
    if (code < 8) {
      // code * 2^-9: normalise the three bits.
      bits = 0;
      for (unsigned shift = 1; code != 0 && bits == 0; ++shift)
        if (((code << shift) & 8U) != 0)
          bits = ((121U - shift) << 7U) | (((code << shift) & 7U) << 4U);
    }
    bytes.low[code] = static_cast<std::uint8_t>(bits & 0xFFU);
    bytes.high[code] = static_cast<std::uint8_t>(bits >> 8U);
  }
  return bytes;
}
constexpr TableBytes kTableBytes = make_table_bytes();

Tables load_tables() {
  return {{_mm512_load_si512(kTableBytes.low), _mm512_load_si512(kTableBytes.low + 64)},
          {_mm512_load_si512(kTableBytes.high), _mm512_load_si512(kTableBytes.high + 64)}};
}

/// 64 codes as bfloat16, in an order of their own: the first vector holds bytes 0-7 of every
/// 16-byte lane, the second bytes 8-15.
inline void widen(const Tables& tables, __m512i codes, __m512i out[2]) {
  const __m512i low = _mm512_permutex2var_epi8(tables.low[0], codes, tables.low[1]);
  const __m512i magnitude = _mm512_permutex2var_epi8(tables.high[0], codes, tables.high[1]);
  // magnitude | (codes & 0x80)
  const __m512i high =
      _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
  out[0] = _mm512_unpacklo_epi8(low, high);
  out[1] = _mm512_unpackhi_epi8(low, high);
}

/// The matrix of vgf2p8affineqb whose result bit i is the code's bit bits[i], or 0 for -1.
constexpr std::int64_t bit_matrix(const int (&bits)[8]) {
  std::uint64_t matrix = 0;
  for (int i = 0; i < 8; ++i)
    if (bits[i] >= 0) matrix |= 1ULL << static_cast<unsigned>(8 * (7 - i) + bits[i]);
  return static_cast<std::int64_t>(matrix);
}
// Code s eeee mmm; bfloat16 s EEEEEEEE mmm0000 with E = e + 120: E's bits 7..4 are those of e's bit
// 3 and three times its complement, then its complement once more, then e's bits 2, 1 and 0.
constexpr std::int64_t kHighMatrix = bit_matrix({4, 5, 6, 6, 6, 6, 6, 7});
constexpr std::int64_t kLowMatrix = bit_matrix({-1, -1, -1, -1, 0, 1, 2, 3});
constexpr int kHighComplement = 0x3C;

/// As widen(), for normal codes only.
inline void widen_normal(__m512i codes, __m512i out[2]) {
  const __m512i low = _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(kLowMatrix), 0);
  const __m512i high =
      _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(kHighMatrix), kHighComplement);
  out[0] = _mm512_unpacklo_epi8(low, high);
  out[1] = _mm512_unpackhi_epi8(low, high);
}

/// Per byte, kSpecial or more for a code that is zero, denormal or NaN; less for a normal one.
constexpr int kSpecial = 0x77;
inline __m512i speciality(__m512i codes) {
  return _mm512_sub_epi8(_mm512_and_si512(codes, _mm512_set1_epi8(0x7F)), _mm512_set1_epi8(8));
}
inline bool any_special(__m512i largest) {
  return _mm512_cmpge_epu8_mask(largest, _mm512_set1_epi8(kSpecial)) != 0;
}

inline __m512i load_codes(const std::byte* row, std::int64_t first, std::int64_t columns) {
  if (first + kStep <= columns) return _mm512_loadu_si512(row + first);
  return _mm512_maskz_loadu_epi8((1ULL << (columns - first)) - 1ULL, row + first);
}

// ---- staging: per 64 columns two token tiles of [16 pairs][tokens] dwords, `tokens` = the panel's

std::int64_t panel_bytes(Format format, std::int64_t columns) {
  if (format != Format::e4m3) return avx512_kernels()->panel_bytes(format, columns);
  return steps_of(columns) * kStepTokensBytes;
}

void stage(const StageTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->stage(task);
  const Tables tables = load_tables();
  std::byte* out = task.panel;
  for (std::int64_t first = 0; first < task.columns; first += kStep, out += kStepTokensBytes) {
    alignas(64) std::uint32_t pairs[2][16][16];  // [tile][token][pair]
    for (std::int64_t t = 0; t < task.count; ++t) {
      __m512i wide[2];
      widen(tables, load_codes(static_cast<const std::byte*>(task.rows[t]), first, task.columns),
            wide);
      _mm512_store_si512(pairs[0][t], wide[0]);
      _mm512_store_si512(pairs[1][t], wide[1]);
    }
    std::uint32_t* tile = reinterpret_cast<std::uint32_t*>(out);
    for (const auto& source : pairs) {
      for (std::int64_t pair = 0; pair < 16; ++pair)
        for (std::int64_t t = 0; t < task.count; ++t) tile[pair * task.count + t] = source[t][pair];
      tile += 16 * 16;
    }
  }
}

// ---- the tile unit
//
// g++ 12's intrinsics do not tell the compiler which memory a tile is loaded from (and of a
// configuration only its first eight bytes), so stores to it may be moved or dropped: these say so.

/// Rows and row bytes of the eight tiles, as ldtilecfg reads them.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

inline void tile_configure(const TileShapes& shapes) {
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}
inline void tile_release() {
  __asm__ volatile("tilerelease" : : : "memory");
}
template <int kTile>
inline void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void tile_load(const std::byte* source, std::int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(source), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
inline void tile_store(float* target, std::int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(target), "r"(stride), "i"(kTile)
                   : "memory");
}
/// kSums += kWeights * kTokens.
template <int kSums, int kWeights, int kTokens>
inline void tile_multiply() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kWeights), "i"(kTokens));
}

// ---- multiplication: up to 32 rows times up to 32 tokens in sum tiles 0-3, weights in 4 and 5,
// tokens in 6 and 7

constexpr std::int64_t kPairRows = 2 * kTileRows;
constexpr std::int64_t kPairTokens = 2 * kPanelTokens;
// Columns widened at once. For few tokens the widening of a block runs beside the multiplication of
// the one before: both small, for the L1 cache. For many tokens a block meets all of them, and its
// sums come and go once per block.
constexpr std::int64_t kFewColumns = 128;
constexpr std::int64_t kManyColumns = 256;
static_assert(kFewColumns % kScaleBlock == 0 && kManyColumns % kScaleBlock == 0);

/// A widened row's bytes: a line more, so that rows do not fall on one another's cache sets.
constexpr std::int64_t row_bytes(std::int64_t columns) {
  return 2 * columns + 64;
}
constexpr std::int64_t block_bytes(std::int64_t columns) {
  return kPairRows * row_bytes(columns);
}

/// [row][token] of a pair of row tiles and a pair of panels.
struct alignas(64) Sums {
  float values[32][32];
};
constexpr std::int64_t kSumsStride = static_cast<std::int64_t>(sizeof(Sums::values[0]));

/// Two panels, or one.
struct Panels {
  const std::byte* first = nullptr;
  const std::byte* second = nullptr;  // null: only one
  std::int64_t first_count = 0;
  std::int64_t second_count = 0;
};

Panels panels_at(const MultiplyTask& task, std::int64_t token) {
  const std::int64_t left = task.tokens - token;
  const std::byte* panel = task.panels + token / kPanelTokens * task.panel_bytes;
  return {panel, left > kPanelTokens ? panel + task.panel_bytes : nullptr,
          least(left, kPanelTokens),
          left > kPanelTokens ? least(left - kPanelTokens, kPanelTokens) : 0};
}

void configure(const Panels& panels) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    const bool weights = i == 4 || i == 5;
    const bool second = i == 1 || i == 3 || i == 7;
    const std::int64_t tokens =
        second && panels.second != nullptr ? panels.second_count : panels.first_count;
    shapes.rows[i] = 16;
    shapes.row_bytes[i] = weights ? 64 : static_cast<std::uint16_t>(4 * tokens);
  }
  tile_configure(shapes);
}

/// `columns` codes of a row as bfloat16, by the tables.
void widen_row(const Tables& tables,
               const std::byte* codes,
               std::int64_t columns,
               std::byte* target) {
  for (std::int64_t k = 0; k < columns; k += kStep) {
    __m512i wide[2];
    widen(tables, load_codes(codes, k, columns), wide);
    _mm512_store_si512(target + k * 2, wide[0]);
    _mm512_store_si512(target + k * 2 + 64, wide[1]);
  }
}

/// kWidth columns of kRows rows into a block, all normal codes; false if they are not, and then
/// nothing is said of the target. Asks for the memory `ahead` bytes further on.
template <std::int64_t kColumns, std::int64_t kWidth, std::int64_t kRows>
inline bool widen_normal_rows(const std::byte* codes,
                              std::int64_t stride,
                              std::int64_t ahead,
                              std::byte* target) {
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (std::int64_t k = 0; k < kWidth; k += kStep) {
      __m512i wide[2];
      const std::byte* at = codes + r * stride + k;
      const __m512i some = _mm512_loadu_si512(at);
      _mm_prefetch(reinterpret_cast<const char*>(at + ahead), _MM_HINT_T1);
      widen_normal(some, wide);
      largest = _mm512_max_epu8(largest, speciality(some));
      _mm512_store_si512(target + r * row_bytes(kColumns) + k * 2, wide[0]);
      _mm512_store_si512(target + r * row_bytes(kColumns) + k * 2 + 64, wide[1]);
    }
  }
  return !any_special(largest);
}

/// Columns first.. of up to 32 rows, at most a block of them, as bfloat16 rows. Calls between() now
/// and then: tile work that runs beside the widening.
template <std::int64_t kColumns, typename Between>
void widen_rows(const Tables& tables,
                const MultiplyTask& task,
                std::int64_t row,
                std::int64_t rows,
                std::int64_t first,
                std::byte* block,
                const Between& between) {
  constexpr std::int64_t kGroup = 2;
  constexpr std::int64_t kBetweenRows = 8;
  const std::int64_t stride = task.row_bytes;
  const std::int64_t columns = least(task.columns - first, kColumns);
  const std::int64_t ahead = kPairRows * stride;
  for (std::int64_t r = 0; r < rows; r += kGroup) {
    const std::byte* codes = task.weight + (row + r) * stride + first;
    std::byte* target = block + r * row_bytes(kColumns);
    const bool group = r + kGroup <= rows;
    bool done = false;
    if (group && columns == kColumns) {
      done = widen_normal_rows<kColumns, kColumns, kGroup>(codes, stride, ahead, target);
    } else if (group && columns % kStep == 0) {
      done = true;
      for (std::int64_t k = 0; k < columns; k += kStep)
        done =
            widen_normal_rows<kColumns, kStep, kGroup>(codes + k, stride, ahead, target + 2 * k) &&
            done;
    }
    for (std::int64_t i = 0; !done && i < least(kGroup, rows - r); ++i)
      widen_row(tables, codes + i * stride, columns, target + i * row_bytes(kColumns));
    if ((r + kGroup) % kBetweenRows == 0) between();
  }
}

/// The sum tiles += `tiles` tiles of 32 columns of widened weights times tokens from column tile
/// `at` on.
template <std::int64_t kColumns, bool kTwoRows, bool kTwoPanels>
void multiply_tiles(const std::byte* weights,
                    const Panels& panels,
                    std::int64_t at,
                    std::int64_t tiles) {
  constexpr std::int64_t kStride = row_bytes(kColumns);
  const std::int64_t first_stride = 4 * panels.first_count;
  const std::int64_t second_stride = 4 * panels.second_count;
  for (std::int64_t i = 0; i < tiles; ++i) {
    tile_load<6>(panels.first + (at + i) * kTileBytes, first_stride);
    tile_load<4>(weights + i * 64, kStride);
    tile_multiply<0, 4, 6>();
    if constexpr (kTwoPanels) {
      tile_load<7>(panels.second + (at + i) * kTileBytes, second_stride);
      tile_multiply<1, 4, 7>();
    }
    if constexpr (kTwoRows) {
      tile_load<5>(weights + kTileRows * kStride + i * 64, kStride);
      tile_multiply<2, 5, 6>();
      if constexpr (kTwoPanels) tile_multiply<3, 5, 7>();
    }
  }
}

/// What of a pair of pairs takes part.
struct Part {
  bool two_rows;
  bool two_panels;
};

template <std::int64_t kColumns>
void multiply_tiles(Part part,
                    const std::byte* weights,
                    const Panels& panels,
                    std::int64_t at,
                    std::int64_t tiles) {
  if (part.two_rows && part.two_panels)
    multiply_tiles<kColumns, true, true>(weights, panels, at, tiles);
  else if (part.two_rows)
    multiply_tiles<kColumns, true, false>(weights, panels, at, tiles);
  else if (part.two_panels)
    multiply_tiles<kColumns, false, true>(weights, panels, at, tiles);
  else
    multiply_tiles<kColumns, false, false>(weights, panels, at, tiles);
}

void zero_sums(Part part) {
  tile_zero<0>();
  if (part.two_panels) tile_zero<1>();
  if (!part.two_rows) return;
  tile_zero<2>();
  if (part.two_panels) tile_zero<3>();
}

void load_sums(const Sums& sums, Part part) {
  const auto at = [&](int row, int token) {
    return reinterpret_cast<const std::byte*>(&sums.values[row][token]);
  };
  tile_load<0>(at(0, 0), kSumsStride);
  if (part.two_panels) tile_load<1>(at(0, 16), kSumsStride);
  if (!part.two_rows) return;
  tile_load<2>(at(16, 0), kSumsStride);
  if (part.two_panels) tile_load<3>(at(16, 16), kSumsStride);
}

void store_sums(Sums& sums, Part part) {
  tile_store<0>(&sums.values[0][0], kSumsStride);
  if (part.two_panels) tile_store<1>(&sums.values[0][16], kSumsStride);
  if (!part.two_rows) return;
  tile_store<2>(&sums.values[16][0], kSumsStride);
  if (part.two_panels) tile_store<3>(&sums.values[16][16], kSumsStride);
}

/// totals += sums * the scales of 128 columns' block; totals = that for the first block.
void add_scaled(Sums& totals,
                const Sums& sums,
                const MultiplyTask& task,
                std::int64_t rows,
                std::int64_t token,
                std::int64_t block) {
  const std::int64_t blocks = (task.columns + kScaleBlock - 1) / kScaleBlock;
  const std::int64_t tokens = least(kPairTokens, task.tokens - token);
  alignas(64) float scales[32] = {};
  for (std::int64_t t = 0; t < tokens; ++t)
    scales[t] = task.token_scales[(token + t) * blocks + block] * task.weight_scales[block];
  for (std::int64_t half = 0; half < tokens; half += 16) {
    const __m512 scale = _mm512_load_ps(scales + half);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* total = &totals.values[r][half];
      const __m512 before = block == 0 ? _mm512_setzero_ps() : _mm512_load_ps(total);
      _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_load_ps(&sums.values[r][half]), scale, before));
    }
  }
}

/// 16 x 16 floats, turned.
void transpose(const float* source, std::int64_t source_stride, float* out, std::int64_t stride) {
  __m512 a[16];
  __m512 b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_load_ps(source + i * source_stride);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    const auto pair = [&](int x, int y, bool upper) {
      const __m512d p = _mm512_castps_pd(b[x]);
      const __m512d q = _mm512_castps_pd(b[y]);
      return _mm512_castpd_ps(upper ? _mm512_unpackhi_pd(p, q) : _mm512_unpacklo_pd(p, q));
    };
    a[i] = pair(i, i + 2, false);
    a[i + 1] = pair(i, i + 2, true);
    a[i + 2] = pair(i + 1, i + 3, false);
    a[i + 3] = pair(i + 1, i + 3, true);
  }
  // a[4g + c] holds, in its lane l, column 4l + c of rows 4g..4g+3.
  for (int c = 0; c < 4; ++c) {
    const __m512 even_low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);  // lanes 0, 2
    const __m512 odd_low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xDD);   // lanes 1, 3
    const __m512 even_high = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    const __m512 odd_high = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xDD);
    _mm512_storeu_ps(out + c * stride, _mm512_shuffle_f32x4(even_low, even_high, 0x88));
    _mm512_storeu_ps(out + (8 + c) * stride, _mm512_shuffle_f32x4(even_low, even_high, 0xDD));
    _mm512_storeu_ps(out + (4 + c) * stride, _mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_ps(out + (12 + c) * stride, _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD));
  }
}

void write_sums(const Sums& sums,
                const MultiplyTask& task,
                std::int64_t row,
                std::int64_t rows,
                std::int64_t token) {
  const std::int64_t tokens = least(kPairTokens, task.tokens - token);
  float* out = task.sums + token * task.rows + row;
  for (std::int64_t t = 0; t < tokens; t += 16) {
    for (std::int64_t r = 0; r < rows; r += 16) {
      if (tokens - t >= 16 && rows - r >= 16) {
        transpose(&sums.values[r][t], 32, out + t * task.rows + r, task.rows);
        continue;
      }
      for (std::int64_t i = t; i < least(t + 16, tokens); ++i)
        for (std::int64_t j = r; j < least(r + 16, rows); ++j)
          out[i * task.rows + j] = sums.values[j][i];
    }
  }
}

/// A widened block's columns, which begin at `first`, times a pair of panels, onto `sums`. The sum
/// tiles hold the sums where this is the task's only pair; else they are brought and taken away.
template <std::int64_t kColumns>
void multiply_block(const MultiplyTask& task,
                    const std::byte* block,
                    std::int64_t rows,
                    std::int64_t first,
                    std::int64_t token,
                    Sums& sums) {
  const bool only = task.tokens <= kPairTokens;
  const Panels panels = panels_at(task, token);
  const Part part{rows > kTileRows, panels.second != nullptr};
  if (!only && (token == 0 || task.tokens - token < kPairTokens)) configure(panels);
  const std::int64_t end = least(steps_of(task.columns) * kStep, first + kColumns);
  if (task.token_scales != nullptr) {
    Sums products;
    for (std::int64_t k = first; k < end; k += kScaleBlock) {
      zero_sums(part);
      multiply_tiles<kColumns>(part, block + (k - first) * 2, panels, k / 32,
                               (least(end, k + kScaleBlock) - k) / 32);
      store_sums(products, part);
      add_scaled(sums, products, task, rows, token, k / kScaleBlock);
    }
    return;
  }
  if (first == 0)
    zero_sums(part);
  else if (!only)
    load_sums(sums, part);
  multiply_tiles<kColumns>(part, block, panels, first / 32, (end - first) / 32);
  if (!only || first + kColumns >= task.columns) store_sums(sums, part);
}

/// A widened block that is to meet the tokens.
struct Block {
  const std::byte* weights = nullptr;
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t first = 0;  // column
  std::int64_t tiles = 0;  // of 32 columns; 0: nothing to do
};

/// At most 32 tokens: while a block is widened, the one before it is multiplied.
void multiply_few(const Tables& tables, const MultiplyTask& task, std::byte* blocks, Sums& sums) {
  const Panels panels = panels_at(task, 0);
  configure(panels);
  Block before;
  std::int64_t done = 0;  // tiles of it
  const auto part_of = [&](const Block& block) {
    return Part{block.rows > kTileRows, panels.second != nullptr};
  };
  const auto multiply_one = [&] {
    if (done == before.tiles) return;
    multiply_tiles<kFewColumns>(part_of(before), before.weights + done * 64, panels,
                                before.first / 32 + done, 1);
    ++done;
  };
  const auto finish = [&] {
    while (done < before.tiles) multiply_one();
    if (before.tiles == 0 || before.first + kFewColumns < task.columns) return;
    store_sums(sums, part_of(before));
    write_sums(sums, task, before.row, before.rows, 0);
  };
  const std::int64_t padded = steps_of(task.columns) * kStep;
  std::int64_t parity = 0;
  for (std::int64_t row = 0; row < task.rows; row += kPairRows) {
    const std::int64_t rows = least(kPairRows, task.rows - row);
    for (std::int64_t first = 0; first < task.columns; first += kFewColumns) {
      std::byte* target = blocks + parity * block_bytes(kFewColumns);
      widen_rows<kFewColumns>(tables, task, row, rows, first, target, multiply_one);
      finish();
      before = {target, row, rows, first, (least(padded, first + kFewColumns) - first) / 32};
      done = 0;
      parity ^= 1;
      if (first == 0) zero_sums(part_of(before));
    }
  }
  finish();
}

/// Memory for two blocks for few tokens, or one for many.
constexpr std::int64_t kBlocksBytes = 2 * block_bytes(kFewColumns) > block_bytes(kManyColumns)
                                          ? 2 * block_bytes(kFewColumns)
                                          : block_bytes(kManyColumns);

void multiply(const MultiplyTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->multiply(task);
  const Tables tables = load_tables();
  std::byte* blocks = task.scratch;
  Sums* sums = reinterpret_cast<Sums*>(blocks + kBlocksBytes);
  if (task.tokens <= kPairTokens && task.token_scales == nullptr) {
    multiply_few(tables, task, blocks, sums[0]);
    return tile_release();
  }
  if (task.tokens <= kPairTokens) configure(panels_at(task, 0));
  for (std::int64_t row = 0; row < task.rows; row += kPairRows) {
    const std::int64_t rows = least(kPairRows, task.rows - row);
    for (std::int64_t first = 0; first < task.columns; first += kManyColumns) {
      widen_rows<kManyColumns>(tables, task, row, rows, first, blocks, [] {});
      for (std::int64_t token = 0; token < task.tokens; token += kPairTokens)
        multiply_block<kManyColumns>(task, blocks, rows, first, token, sums[token / kPairTokens]);
    }
    for (std::int64_t token = 0; token < task.tokens; token += kPairTokens)
      write_sums(sums[token / kPairTokens], task, row, rows, token);
  }
  tile_release();
}

std::int64_t multiply_scratch_bytes(std::int64_t columns) {
  constexpr std::int64_t kPairs = (kTokensMax + kPairTokens - 1) / kPairTokens;
  const std::int64_t widened = kBlocksBytes + kPairs * static_cast<std::int64_t>(sizeof(Sums));
  const std::int64_t vector = avx512_kernels()->multiply_scratch_bytes(columns);
  return widened > vector ? widened : vector;
}

// ---- detection

constexpr unsigned kTileDataState = 18;  // XCR0 bit of the tiles' contents

/// AMX is used by permission: the kernel enlarges the signal frame and the saved state.
bool tiles_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileDataState) == 0;
#else
  return false;
#endif
}

bool supported() {
  if (avx512_kernels() == nullptr || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("gfni"))
    return false;
  constexpr unsigned kTile = 1U << 24U;
  constexpr unsigned kBfloat16 = 1U << 22U;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kTile) != 0 && (edx & kBfloat16) != 0 && tiles_permitted();
}

}  // namespace

const Kernels* amx_kernels() {
  if (!supported()) return nullptr;
  static const Kernels kKernels = [] {
    Kernels kernels = *avx512_kernels();
    kernels.name = "amx";
    kernels.panel_bytes = panel_bytes;
    kernels.multiply_scratch_bytes = multiply_scratch_bytes;
    kernels.stage = stage;
    kernels.multiply = multiply;
    return kernels;
  }();
  return &kKernels;
}

}  // namespace koho::cpu
