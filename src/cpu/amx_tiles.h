// SPDX-License-Identifier: Apache-2.0
// The tile instructions of AMX, and the transpose that its results need. Included by
// kernels_amx.cpp alone.
//
// NOTE: inline assembly, since g++ 12's intrinsics do not tell the compiler which memory a tile
// load reads (and of a configuration only its first eight bytes): it moves or drops stores to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "cpu/amx_upcast.h"

namespace koho::cpu {
namespace {

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
/// kAccumulators += kWeights * kTokens.
template <int kAccumulators, int kWeights, int kTokens>
inline void tile_multiply() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kAccumulators), "i"(kWeights), "i"(kTokens));
}

/// out = source, a 16 x 16 matrix of f32, transposed.
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

/// out[token][row] = values[row][token]; `stride` floats lie between the rows' values, `out_stride`
/// between the tokens'.
void write_tiles(const float* values,
                 std::int64_t stride,
                 std::int64_t tokens,
                 std::int64_t rows,
                 float* out,
                 std::int64_t out_stride) {
  for (std::int64_t t = 0; t < tokens; t += 16) {
    for (std::int64_t r = 0; r < rows; r += 16) {
      if (tokens - t >= 16 && rows - r >= 16) {
        transpose(values + r * stride + t, stride, out + t * out_stride + r, out_stride);
        continue;
      }
      for (std::int64_t i = t; i < least(t + 16, tokens); ++i)
        for (std::int64_t j = r; j < least(r + 16, rows); ++j)
          out[i * out_stride + j] = values[j * stride + i];
    }
  }
}

}  // namespace
}  // namespace koho::cpu
