// SPDX-License-Identifier: Apache-2.0
// The AMX table: E4M3 weights and activations, upcast to bfloat16 (exact), multiplied by the tile
// unit; for up to two tokens by vectors in f32, with the same bits. Everything else is the AVX-512
// table's. bf16 weights do not come here: the tile unit flushes denormals, and products of E4M3
// values have none.
//
// Order of a sum. A step is 64 columns, upcast to two vectors of 16 pairs; a span is eight steps.
// For each of the 16 lanes, the span's 16 pairs are one tile multiplication: it adds the even
// columns in a chain, the odd ones in another, adds the two, and adds that to the total. The
// vectors do the same for 16 lanes at once, and add their lanes to the total in order at the end.
// Weights with block scales, whose sums must end every 128 columns, have an order of their own: one
// tile multiplication takes 32 neighbouring columns.
//
// Why vectors at all: a tile instruction costs as much for one token as for 16, and four times as
// much while the core's other thread is busy, which a virtual machine cannot prevent.
//
// A weight tile is 16 rows x 16 pairs, a token tile 16 pairs x 16 tokens, a sum tile 16 rows x 16
// tokens of f32. The kernel upcasts 32 rows x 512 columns, multiplies all tokens by them, and keeps
// the sums in memory between, as f32, which loses nothing.
#include <cpuid.h>
#include <cstring>
#include <immintrin.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/amx_tiles.h"
#include "cpu/amx_upcast.h"
#include "cpu/kernels.h"
#include "cpu/weight_prefetcher.h"

namespace koho::cpu {
namespace {

// ---- staging: per 32 columns a token tile of [16 pairs][tokens] dwords, `tokens` = the panel's;
// or for vectors, per 64 columns and token, four vectors of f32

std::int64_t panel_bytes(Format format, std::int64_t columns) {
  if (format != Format::e4m3) return avx512_kernels()->panel_bytes(format, columns);
  return spans_of(columns) * kSpanTokensBytes;
}

constexpr std::int64_t kDirectFloats = 4 * kLanes;  // of a step of one token
static_assert(kDirectTokens * kDirectFloats * 4 * kSpanSteps <= kSpanTokensBytes);

void stage_direct(const StageTask& task, const Tables& tables) {
  const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  float* out = reinterpret_cast<float*>(task.panel);
  for (std::int64_t first = 0; first < task.columns; first += kStep) {
    for (std::int64_t t = 0; t < task.count; ++t, out += kDirectFloats) {
      __m512i wide[2];
      upcast(tables,
             load_quantized(static_cast<const std::byte*>(task.rows[t]), first, task.columns),
             wide);
      _mm512_store_ps(out, even_of(wide[0]));
      _mm512_store_ps(out + kLanes, odd_of(wide[0], odd_mask));
      _mm512_store_ps(out + 2 * kLanes, even_of(wide[1]));
      _mm512_store_ps(out + 3 * kLanes, odd_of(wide[1], odd_mask));
    }
  }
}

void stage(const StageTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->stage(task);
  const Tables tables = load_tables();
  if (!task.block_scales && task.tokens <= kDirectTokens) return stage_direct(task, tables);
  std::uint32_t* tile = reinterpret_cast<std::uint32_t*>(task.panel);
  for (std::int64_t first = 0; first < task.columns; first += kSpan) {
    for (std::int64_t t = 0; t < task.count; ++t) {
      alignas(64) std::uint32_t pairs[2 * kSpanSteps][kLanes];
      for (std::int64_t step = 0; step < kSpanSteps; ++step) {
        __m512i wide[2];
        upcast(tables,
               load_quantized(static_cast<const std::byte*>(task.rows[t]), first + step * kStep,
                              task.columns),
               wide);
        _mm512_store_si512(pairs[2 * step], wide[0]);
        _mm512_store_si512(pairs[2 * step + 1], wide[1]);
      }
      for (std::int64_t i = 0; i < kLanes; ++i)
        for (std::int64_t pair = 0; pair < 16; ++pair)
          tile[i * 256 + pair * task.count + t] =
              task.block_scales ? pairs[i][pair] : pairs[pair][i];
    }
    tile += kSpanTokensBytes / 4;
  }
}

// ---- multiplication: up to 32 rows times up to 32 tokens in sum tiles 0-3, weights in 4 and 5,
// tokens in 6 and 7

constexpr std::int64_t kPairRows = 2 * kTileRows;
constexpr std::int64_t kPairTokens = 2 * kPanelTokens;
// A span is upcast at once. Half of its tiles, which with the tokens' fit into the L1 cache, meet
// all tokens, then the other half; sums come and go with each.
constexpr std::int64_t kHalf = kSpan / 2;
static_assert(kHalf % kScaleBlock == 0);

/// A upcast row's bytes: a line more, so that rows do not fall on one another's cache sets.
constexpr std::int64_t kBlockStride = 2 * kSpan + 64;
constexpr std::int64_t kBlockBytes = kPairRows * kBlockStride;

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

/// A span of up to 32 rows as bfloat16 rows of tiles, whose order kLaneOrder chooses.
template <bool kLaneOrder>
void upcast_span(const Tables& tables,
                 const MultiplyTask& task,
                 std::int64_t row,
                 std::int64_t rows,
                 std::int64_t first,
                 std::byte* block,
                 WeightPrefetcher& prefetcher) {
  const Constants constants;
  const std::int64_t columns = least(task.columns - first, kSpan);
  const __m512i one = _mm512_set1_epi8(0x38);  // a normal value; it meets tokens' zeros
  for (std::int64_t r = 0; r < rows; ++r, block += kBlockStride) {
    prefetcher.advance(columns);
    const std::byte* source = task.weight + (row + r) * task.row_bytes + first;
    __m512i quantized[kSpanSteps];
    __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (std::int64_t step = 0; step < kSpanSteps; ++step) {
      quantized[step] = kept(load_quantized(source, step * kStep, columns, one));
      largest = _mm512_max_epu8(largest, speciality(constants, quantized[step]));
    }
    if constexpr (kLaneOrder) gather_lanes(quantized);
    const auto write = [&](auto upcast_value) {
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < kSpanSteps; ++i) {
        __m512i wide[2];
        upcast_value(quantized[i], wide);
        std::byte* target = block + 64 * (kLaneOrder ? lane_of(i) : 2 * i);
        _mm512_store_si512(target, wide[0]);
        _mm512_store_si512(target + 64, wide[1]);
      }
    };
    if (any_special(largest))
      write([&](__m512i some, __m512i* wide) { upcast(tables, some, wide); });
    else
      write([&](__m512i some, __m512i* wide) { upcast_normal(constants, some, wide); });
  }
}

/// The sum tiles += `tiles` tiles of 32 columns of upcast weights times tokens from column tile
/// `at` on.
template <bool kTwoRows, bool kTwoPanels>
void multiply_tiles(const std::byte* weights,
                    const Panels& panels,
                    std::int64_t at,
                    std::int64_t tiles) {
  const std::int64_t first_stride = 4 * panels.first_count;
  const std::int64_t second_stride = 4 * panels.second_count;
  for (std::int64_t i = 0; i < tiles; ++i) {
    tile_load<6>(panels.first + (at + i) * kTileBytes, first_stride);
    tile_load<4>(weights + i * 64, kBlockStride);
    tile_multiply<0, 4, 6>();
    if constexpr (kTwoPanels) {
      tile_load<7>(panels.second + (at + i) * kTileBytes, second_stride);
      tile_multiply<1, 4, 7>();
    }
    if constexpr (kTwoRows) {
      tile_load<5>(weights + kTileRows * kBlockStride + i * 64, kBlockStride);
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

void multiply_tiles(Part part,
                    const std::byte* weights,
                    const Panels& panels,
                    std::int64_t at,
                    std::int64_t tiles) {
  if (part.two_rows && part.two_panels)
    multiply_tiles<true, true>(weights, panels, at, tiles);
  else if (part.two_rows)
    multiply_tiles<true, false>(weights, panels, at, tiles);
  else if (part.two_panels)
    multiply_tiles<false, true>(weights, panels, at, tiles);
  else
    multiply_tiles<false, false>(weights, panels, at, tiles);
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

/// The columns that tiles stand for, the zeros at the end included.
std::int64_t tiled_columns(const MultiplyTask& task) {
  return task.token_scales == nullptr ? spans_of(task.columns) * kSpan
                                      : steps_of(task.columns) * kStep;
}

/// Half a upcast span's tiles, from the one of column `first` on, times a pair of panels, onto
/// `sums`. The sum tiles hold the sums where this is the task's only pair; else they are brought
/// and taken away.
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
  const std::int64_t end = least(tiled_columns(task), first + kHalf);
  if (task.token_scales != nullptr) {
    Sums products;
    for (std::int64_t k = first; k < end; k += kScaleBlock) {
      zero_sums(part);
      multiply_tiles(part, block + (k - first) * 2, panels, k / 32,
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
  multiply_tiles(part, block, panels, first / 32, (end - first) / 32);
  if (!only || end == tiled_columns(task)) store_sums(sums, part);
}

// ---- up to two tokens

/// The sums of 16 rows, lane by lane: [row][span][lane].
std::int64_t lane_floats(std::int64_t columns) {
  return kTileRows * spans_of(columns) * kLanes;
}

/// kRows rows times kTokens tokens, from `row` and `token` on; lanes[t * lane_floats + ...] is row
/// 0's.
template <int kRows, int kTokens>
inline void add_rows(const Tables& tables,
                     const Constants& constants,
                     const MultiplyTask& task,
                     std::int64_t row,
                     float* lanes,
                     WeightPrefetcher& prefetcher) {
  const __m512i odd_mask = kept(_mm512_set1_epi32(static_cast<int>(0xFFFF0000U)));
  const std::int64_t spans = spans_of(task.columns);
  const std::byte* weights = task.weight + row * task.row_bytes;
  const float* x = reinterpret_cast<const float*>(task.panels);
  for (std::int64_t span = 0; span < spans; ++span) {
    __m512 even[std::size_t{kRows}][std::size_t{kTokens}];
    __m512 odd[std::size_t{kRows}][std::size_t{kTokens}];
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t) even[r][t] = odd[r][t] = _mm512_setzero_ps();
    const std::int64_t end = least(task.columns, (span + 1) * kSpan);
    for (std::int64_t first = span * kSpan; first < end; first += kStep) {
      prefetcher.advance(kRows * kStep);
      __m512i wide[std::size_t{kRows}][2];
      __m512i largest = _mm512_setzero_si512();
      if (first + kStep <= end) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512i quantized = kept(_mm512_loadu_si512(weights + r * task.row_bytes + first));
          largest = _mm512_max_epu8(largest, speciality(constants, quantized));
          upcast_normal(constants, quantized, wide[r]);
        }
      }
      if (__builtin_expect(first + kStep > end || any_special(largest), 0))
        for (int r = 0; r < kRows; ++r)
          upcast(tables, load_quantized(weights + r * task.row_bytes, first, end), wide[r]);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t, x += kDirectFloats) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < 2; ++i) {
            even[r][t] = _mm512_fmadd_ps(even_of(wide[r][i]), _mm512_load_ps(x + 2 * i * kLanes),
                                         even[r][t]);
            odd[r][t] = _mm512_fmadd_ps(odd_of(wide[r][i], odd_mask),
                                        _mm512_load_ps(x + (2 * i + 1) * kLanes), odd[r][t]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t)
        _mm512_store_ps(lanes + t * lane_floats(task.columns) + (r * spans + span) * kLanes,
                        _mm512_add_ps(even[r][t], odd[r][t]));
  }
}

template <int kTokens>
void multiply_direct(const MultiplyTask& task) {
  constexpr int kRows = 4 / kTokens;
  const Tables tables = load_tables();
  const Constants constants;
  const std::int64_t spans = spans_of(task.columns);
  float* lanes = reinterpret_cast<float*>(task.scratch);
  WeightPrefetcher prefetcher(task, 0, task.rows);
  for (std::int64_t row = 0; row < task.rows; row += kTileRows) {
    const std::int64_t rows = least(kTileRows, task.rows - row);
    std::int64_t r = 0;
    for (; r + kRows <= rows; r += kRows)
      add_rows<kRows, kTokens>(tables, constants, task, row + r, lanes + r * spans * kLanes,
                               prefetcher);
    for (; r < rows; ++r)
      add_rows<1, kTokens>(tables, constants, task, row + r, lanes + r * spans * kLanes,
                           prefetcher);
    for (int t = 0; t < kTokens; ++t) {
      __m512 totals = _mm512_setzero_ps();
      for (std::int64_t span = 0; span < spans; ++span) {
        alignas(64) float lanes_first[kLanes][kTileRows];
        transpose(lanes + t * lane_floats(task.columns) + span * kLanes, spans * kLanes,
                  lanes_first[0], kTileRows);
        for (const auto& lane : lanes_first) totals = _mm512_add_ps(totals, _mm512_load_ps(lane));
      }
      _mm512_mask_storeu_ps(task.sums + t * task.rows + row,
                            static_cast<__mmask16>((1U << rows) - 1U), totals);
    }
  }
}

// ----

void multiply(const MultiplyTask& task) {
  if (task.format != Format::e4m3) return avx512_kernels()->multiply(task);
  const bool scaled = task.token_scales != nullptr;
  if (!scaled && task.tokens <= kDirectTokens) {
    static_assert(kDirectTokens == 2);
    return task.tokens == 1 ? multiply_direct<1>(task) : multiply_direct<2>(task);
  }
  const Tables tables = load_tables();
  std::byte* block = task.scratch;
  Sums* sums = reinterpret_cast<Sums*>(block + kBlockBytes);
  if (task.tokens <= kPairTokens) configure(panels_at(task, 0));
  for (std::int64_t row = 0; row < task.rows; row += kPairRows) {
    const std::int64_t rows = least(kPairRows, task.rows - row);
    WeightPrefetcher prefetcher(task, row, rows);
    for (std::int64_t first = 0; first < tiled_columns(task); first += kHalf) {
      const std::int64_t half = first % kSpan;
      if (half == 0 && scaled)
        upcast_span<false>(tables, task, row, rows, first, block, prefetcher);
      if (half == 0 && !scaled)
        upcast_span<true>(tables, task, row, rows, first, block, prefetcher);
      for (std::int64_t token = 0; token < task.tokens; token += kPairTokens)
        multiply_block(task, block + 2 * half, rows, first, token, sums[token / kPairTokens]);
    }
    for (std::int64_t token = 0; token < task.tokens; token += kPairTokens)
      write_tiles(&sums[token / kPairTokens].values[0][0], kPairTokens,
                  least(kPairTokens, task.tokens - token), rows,
                  task.sums + token * task.rows + row, task.rows);
  }
  tile_release();
}

std::int64_t multiply_scratch_bytes(std::int64_t columns) {
  constexpr std::int64_t kPairs = (kTokensMax + kPairTokens - 1) / kPairTokens;
  const std::int64_t upcast = kBlockBytes + kPairs * static_cast<std::int64_t>(sizeof(Sums));
  const std::int64_t lanes =
      kDirectTokens * lane_floats(columns) * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t vector = avx512_kernels()->multiply_scratch_bytes(columns);
  const std::int64_t most = upcast > lanes ? upcast : lanes;
  return most > vector ? most : vector;
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
