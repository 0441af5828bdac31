// SPDX-License-Identifier: Apache-2.0
// AMX: E4M3 weights and activations as bfloat16 (exact) in the tile unit; everything else is the
// AVX-512 table's. A sum takes 32 columns at a step, in the tile unit's own order, for one token
// and for a thousand alike. The tile unit flushes denormals: products of E4M3 codes have none,
// which is why bf16 weights do not come here.
//
// Per step: a weight tile holds 16 rows x 32 columns, a token tile 16 pairs of columns x 16 tokens,
// a sum tile 16 rows x 16 tokens of f32. A code becomes its bfloat16's two bytes by two 128-entry
// byte tables held in registers.
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
constexpr std::int64_t kStreamColumns = 512;  // widened at once when weights are read once: 32 KiB
constexpr std::int64_t kPairBytes = 2 * kTileBytes;  // 32 columns of 32 rows

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

void zero_sums() {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
}

/// Columns first..end-1 of up to 32 rows as tiles: per 32 columns, rows 0-15, then rows 16-31.
void widen_rows(const Tables& tables,
                const MultiplyTask& task,
                std::int64_t row,
                std::int64_t rows,
                std::int64_t first,
                std::int64_t end,
                std::byte* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* codes = task.weight + (row + r) * task.row_bytes;
    std::byte* target = out + r / kTileRows * kTileBytes + r % kTileRows * 64;
    for (std::int64_t k = first; k < end; k += kStep, target += 2 * kPairBytes) {
      __m512i wide[2];
      widen(tables, load_codes(codes, k, task.columns), wide);
      _mm512_store_si512(target, wide[0]);
      _mm512_store_si512(target + kPairBytes, wide[1]);
    }
  }
}

/// The sum tiles += `tiles` column tiles of widened weights times tokens from column tile `at` on.
template <bool kTwoRows, bool kTwoPanels>
void multiply_tiles(const std::byte* weights,
                    const Panels& panels,
                    std::int64_t at,
                    std::int64_t tiles) {
  const std::int64_t first_stride = 4 * panels.first_count;
  const std::int64_t second_stride = 4 * panels.second_count;
  for (std::int64_t i = 0; i < tiles; ++i) {
    tile_load<6>(panels.first + (at + i) * kTileBytes, first_stride);
    tile_load<4>(weights + i * kPairBytes, 64);
    tile_multiply<0, 4, 6>();
    if constexpr (kTwoPanels) {
      tile_load<7>(panels.second + (at + i) * kTileBytes, second_stride);
      tile_multiply<1, 4, 7>();
    }
    if constexpr (kTwoRows) {
      tile_load<5>(weights + i * kPairBytes + kTileBytes, 64);
      tile_multiply<2, 5, 6>();
      if constexpr (kTwoPanels) tile_multiply<3, 5, 7>();
    }
  }
}

void multiply_tiles(const std::byte* weights,
                    std::int64_t rows,
                    const Panels& panels,
                    std::int64_t at,
                    std::int64_t tiles) {
  if (rows > kTileRows && panels.second != nullptr)
    multiply_tiles<true, true>(weights, panels, at, tiles);
  else if (rows > kTileRows)
    multiply_tiles<true, false>(weights, panels, at, tiles);
  else if (panels.second != nullptr)
    multiply_tiles<false, true>(weights, panels, at, tiles);
  else
    multiply_tiles<false, false>(weights, panels, at, tiles);
}

/// [row][token] of a pair of row tiles and a pair of panels.
struct alignas(64) Sums {
  float values[32][32];
};

void store_sums(Sums& sums, std::int64_t rows, const Panels& panels) {
  constexpr std::int64_t kStride = static_cast<std::int64_t>(sizeof(sums.values[0]));
  tile_store<0>(&sums.values[0][0], kStride);
  if (panels.second != nullptr) tile_store<1>(&sums.values[0][16], kStride);
  if (rows <= kTileRows) return;
  tile_store<2>(&sums.values[16][0], kStride);
  if (panels.second != nullptr) tile_store<3>(&sums.values[16][16], kStride);
}

/// totals += sums * the scales of 128 columns' block.
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
      _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_load_ps(&sums.values[r][half]), scale,
                                             _mm512_load_ps(total)));
    }
  }
}

void write_sums(const Sums& sums,
                const MultiplyTask& task,
                std::int64_t row,
                std::int64_t rows,
                std::int64_t token) {
  const std::int64_t tokens = least(kPairTokens, task.tokens - token);
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* out = task.sums + (token + t) * task.rows + row;
    for (std::int64_t r = 0; r < rows; ++r) out[r] = sums.values[r][t];
  }
}

/// All columns of `rows` rows times a pair of panels. `weights` holds them widened, or is null:
/// then they are widened here, 512 columns at a time, into `scratch`.
void multiply_pair(const Tables& tables,
                   const MultiplyTask& task,
                   std::int64_t row,
                   std::int64_t rows,
                   std::int64_t token,
                   const std::byte* weights,
                   std::byte* scratch) {
  const Panels panels = panels_at(task, token);
  const bool scaled = task.token_scales != nullptr;
  const std::int64_t padded = steps_of(task.columns) * kStep;
  Sums sums = {};
  Sums totals = {};
  zero_sums();
  for (std::int64_t first = 0; first < padded; first += kStreamColumns) {
    const std::int64_t end = least(padded, first + kStreamColumns);
    const std::byte* block = scratch;
    if (weights != nullptr)
      block = weights + first / 32 * kPairBytes;
    else
      widen_rows(tables, task, row, rows, first, end, scratch);
    if (!scaled) {
      multiply_tiles(block, rows, panels, first / 32, (end - first) / 32);
      continue;
    }
    for (std::int64_t k = first; k < end; k += kScaleBlock) {
      zero_sums();
      multiply_tiles(block + (k - first) / 32 * kPairBytes, rows, panels, k / 32,
                     (least(end, k + kScaleBlock) - k) / 32);
      store_sums(sums, rows, panels);
      add_scaled(totals, sums, task, rows, token, k / kScaleBlock);
    }
  }
  if (!scaled) store_sums(totals, rows, panels);
  write_sums(totals, task, row, rows, token);
}

void multiply(const MultiplyTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->multiply(task);
  const Tables tables = load_tables();
  const std::int64_t padded = steps_of(task.columns) * kStep;
  const bool stream = task.tokens <= kPairTokens;
  if (stream) configure(panels_at(task, 0));
  for (std::int64_t row = 0; row < task.rows; row += kPairRows) {
    const std::int64_t rows = least(kPairRows, task.rows - row);
    if (stream) {
      multiply_pair(tables, task, row, rows, 0, nullptr, task.scratch);
      continue;
    }
    widen_rows(tables, task, row, rows, 0, padded, task.scratch);
    for (std::int64_t token = 0; token < task.tokens; token += kPairTokens) {
      if (token == 0 || task.tokens - token < kPairTokens) configure(panels_at(task, token));
      multiply_pair(tables, task, row, rows, token, task.scratch, nullptr);
    }
  }
  tile_release();
}

std::int64_t multiply_scratch_bytes(std::int64_t columns) {
  const std::int64_t widened = steps_of(columns) * 2 * kPairBytes;
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
  if (avx512_kernels() == nullptr || !__builtin_cpu_supports("avx512vbmi")) return false;
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
