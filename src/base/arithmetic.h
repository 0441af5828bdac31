// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic on sizes that come from files and requests: overflow is an answer, never a
// wrapped value.
#pragma once

#include <cstdint>
#include <optional>

namespace koho {

/// a + b, or nothing on overflow.
template <typename Integer>
[[nodiscard]] constexpr std::optional<Integer> checked_add(Integer a, Integer b) {
  Integer sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a * b, or nothing on overflow.
template <typename Integer>
[[nodiscard]] constexpr std::optional<Integer> checked_mul(Integer a, Integer b) {
  Integer product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// ceil(a / b) for a >= 0, b > 0.
template <typename Integer>
[[nodiscard]] constexpr Integer ceil_div(Integer a, Integer b) {
  return static_cast<Integer>(a / b + (a % b != 0 ? 1 : 0));
}

/// The least multiple of b that is >= a, for a >= 0, b > 0.
template <typename Integer>
[[nodiscard]] constexpr Integer round_up(Integer a, Integer b) {
  return static_cast<Integer>(ceil_div(a, b) * b);
}

}  // namespace koho
