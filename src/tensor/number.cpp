// SPDX-License-Identifier: Apache-2.0
#include "tensor/number.h"

#include <cmath>

namespace koho {

float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t widened = exponent == 31 ? 0xFFU : exponent + 112;
  return std::bit_cast<float>(sign | (widened << 23U) | (mantissa << 13U));
}

Float16 to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value))
    return {static_cast<std::uint16_t>(sign | 0x7E00U | ((bits >> 13U) & 0x3FFU))};
  if (magnitude >= 65520.0F) return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  if (magnitude < 0x1p-14F) {
    // Denormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low mantissa bits.
    const std::uint32_t shifted = std::bit_cast<std::uint32_t>(magnitude + 0.5F);
    return {static_cast<std::uint16_t>(sign | (shifted - std::bit_cast<std::uint32_t>(0.5F)))};
  }
  const std::uint32_t absolute = bits & 0x7FFFFFFFU;
  const std::uint32_t rounded = absolute + 0xFFFU + ((absolute >> 13U) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded >> 13U) - (112U << 10U)))};
}

float to_float(Float8E4M3 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x80U) << 24U;
  const std::uint32_t magnitude = value.bits & 0x7FU;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (magnitude < 8) {
    const float denormal = static_cast<float>(magnitude) * 0x1p-9F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(denormal) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20U) + (120U << 23U)));
}

Float8E4M3 to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24U) & 0x80U);
  if (std::isnan(value)) return {static_cast<std::uint8_t>(sign | 0x7FU)};
  const float magnitude = std::fabs(value);
  if (magnitude >= kE4M3Max) return {static_cast<std::uint8_t>(sign | 0x7EU)};
  if (magnitude < 0x1p-6F) {
    // Denormal: adding 2^14 leaves the rounded multiple of 2^-9 in the low mantissa bits.
    const std::uint32_t shifted = std::bit_cast<std::uint32_t>(magnitude + 0x1p14F);
    return {static_cast<std::uint8_t>(sign | (shifted - std::bit_cast<std::uint32_t>(0x1p14F)))};
  }
  const std::uint32_t absolute = bits & 0x7FFFFFFFU;
  const std::uint32_t rounded = absolute + 0x7FFFFU + ((absolute >> 20U) & 1U);
  return {static_cast<std::uint8_t>(sign | ((rounded >> 20U) - (120U << 3U)))};
}

}  // namespace koho
