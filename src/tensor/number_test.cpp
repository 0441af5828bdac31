// SPDX-License-Identifier: Apache-2.0
// The number formats against arithmetic definitions written out here; tests/golden holds PyTorch's
// own answers.
#include "tensor/number.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace koho {
namespace {

/// The value of an E4M3 code from the format's definition.
double e4m3_by_definition(unsigned code) {
  const double sign = (code & 0x80U) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((code >> 3U) & 15U);
  const double mantissa = static_cast<double>(code & 7U) / 8.0;
  if ((code & 0x7FU) == 0x7FU) return std::numeric_limits<double>::quiet_NaN();
  return exponent == 0 ? sign * std::ldexp(mantissa, -6)
                       : sign * std::ldexp(1.0 + mantissa, exponent - 7);
}

/// The nearest finite code, ties to the even one, found by looking at all of them.
unsigned nearest_e4m3(double value) {
  unsigned best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (unsigned code = 0; code < 0x7F; ++code) {
    const double distance = std::fabs(std::fabs(value) - e4m3_by_definition(code));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return std::signbit(value) ? best | 0x80U : best;
}

TEST(Number, EveryE4M3CodeHasItsDefinedValueAndComesBack) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = to_float(Float8E4M3{static_cast<std::uint8_t>(code)});
    const double expected = e4m3_by_definition(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
    EXPECT_EQ(to_e4m3(value).bits, code);
  }
}

TEST(Number, EveryBf16InputRoundsToTheNearestE4M3Code) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float value = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    const unsigned sign = bits >= 32768 ? 0x80U : 0U;
    const unsigned expected = std::isnan(value)   ? sign | 0x7FU
                              : std::isinf(value) ? sign | 0x7EU
                                                  : nearest_e4m3(static_cast<double>(value));
    ASSERT_EQ(to_e4m3(value).bits, expected) << bits;
  }
}

TEST(Number, EveryF16CodeComesBack) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float value = to_float(Float16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(value))));
    } else {
      ASSERT_EQ(to_f16(value).bits, bits);
    }
  }
}

TEST(Number, F16RoundsToNearestEven) {
  for (unsigned bits = 0; bits < 0x7BFF; ++bits) {
    const auto low = static_cast<double>(to_float(Float16{static_cast<std::uint16_t>(bits)}));
    const auto high = static_cast<double>(to_float(Float16{static_cast<std::uint16_t>(bits + 1)}));
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(to_f16(middle).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(to_f16(std::nextafterf(middle, 0.0F)).bits, bits) << bits;
    ASSERT_EQ(to_f16(std::nextafterf(middle, 1e9F)).bits, bits + 1) << bits;
  }
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7C00);
}

TEST(Number, Bf16RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000U)).bits, 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000U)).bits, 0x3F82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001U)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001U)))));
}

}  // namespace
}  // namespace koho
