// SPDX-License-Identifier: Apache-2.0
// BFloat16, Float16 and Float8E4M3 as storage types, and their conversions: round to nearest even;
// E4M3 saturates to ±448 and keeps NaN. Equal, value for value, to PyTorch's casts (E4M3 after
// clamping to ±448).
#pragma once

#include <bit>
#include <cstdint>

namespace koho {

/// The upper half of an f32.
struct BFloat16 {
  std::uint16_t bits = 0;
};

/// IEEE 754 binary16.
struct Float16 {
  std::uint16_t bits = 0;
};

/// E4M3FN: 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448; no infinity; NaN is 0x7F and
/// 0xFF.
struct Float8E4M3 {
  std::uint8_t bits = 0;
};

inline constexpr float kE4M3Max = 448.0F;

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

inline BFloat16 to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
    return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};
  const std::uint32_t rounding = 0x7FFFU + ((bits >> 16U) & 1U);
  return {static_cast<std::uint16_t>((bits + rounding) >> 16U)};
}

/// f32 → bf16 → f32: the rounding points of the reference.
inline float round_to_bf16(float value) {
  return to_float(to_bf16(value));
}

float to_float(Float16 value);
Float16 to_f16(float value);

float to_float(Float8E4M3 value);

/// Saturates finite values and infinities to ±448; NaN stays NaN with its sign.
Float8E4M3 to_e4m3(float value);

}  // namespace koho
