// SPDX-License-Identifier: Apache-2.0
// Exact upcast of 64 E4M3 values to bfloat16 by two 128-entry byte tables: what the AMX and the
// BF16 kernels share. Included by files that are compiled for AVX-512 VBMI: everything here has
// internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

namespace koho::cpu {
namespace {

constexpr std::int64_t kStep = 64;   // columns of a vector of FP8 values
constexpr std::int64_t kLanes = 16;  // pairs of a vector

constexpr std::int64_t steps_of(std::int64_t columns) {
  return (columns + kStep - 1) / kStep;
}
constexpr std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

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
  for (unsigned fp8 = 0; fp8 < 128; ++fp8) {
    unsigned bits = (fp8 << 4U) + (120U << 7U);
    if (fp8 == 127) bits = 0x7FC0;
    if (fp8 < 8) {
      // fp8 * 2^-9: normalise the three bits.
      bits = 0;
      for (unsigned shift = 1; fp8 != 0 && bits == 0; ++shift)
        if (((fp8 << shift) & 8U) != 0)
          bits = ((121U - shift) << 7U) | (((fp8 << shift) & 7U) << 4U);
    }
    bytes.low[fp8] = static_cast<std::uint8_t>(bits & 0xFFU);
    bytes.high[fp8] = static_cast<std::uint8_t>(bits >> 8U);
  }
  return bytes;
}
constexpr TableBytes kTableBytes = make_table_bytes();

Tables load_tables() {
  return {{_mm512_load_si512(kTableBytes.low), _mm512_load_si512(kTableBytes.low + 64)},
          {_mm512_load_si512(kTableBytes.high), _mm512_load_si512(kTableBytes.high + 64)}};
}

/// 64 FP8 values as bfloat16, in an order of their own: the first vector holds bytes 0-7 of every
/// 16-byte lane, the second bytes 8-15.
inline void upcast(const Tables& tables, __m512i quantized, __m512i out[2]) {
  const __m512i low = _mm512_permutex2var_epi8(tables.low[0], quantized, tables.low[1]);
  const __m512i magnitude = _mm512_permutex2var_epi8(tables.high[0], quantized, tables.high[1]);
  // magnitude | (quantized & 0x80)
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, quantized,
                                                 _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
  out[0] = _mm512_unpacklo_epi8(low, high);
  out[1] = _mm512_unpackhi_epi8(low, high);
}

/// 64 FP8 values, `rest` beyond the row's end.
inline __m512i load_quantized(const std::byte* row,
                              std::int64_t first,
                              std::int64_t columns,
                              __m512i rest = _mm512_setzero_si512()) {
  if (first + kStep <= columns) return _mm512_loadu_si512(row + first);
  if (first >= columns) return rest;
  return _mm512_mask_loadu_epi8(rest, (1ULL << (columns - first)) - 1ULL, row + first);
}

}  // namespace
}  // namespace koho::cpu
