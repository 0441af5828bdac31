// SPDX-License-Identifier: Apache-2.0
// The numbers of synthetic weights: element i of tensor `name` under `seed` is a pure function of
// the three in 64-bit integers, so the CPU, a GPU and Python (tools/golden/generator.py) compute
// the same. No state, nothing but arithmetic.
#pragma once

#include <cstdint>
#include <string_view>

namespace koho::synthetic {

/// FNV-1a.
constexpr std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325ULL;
  for (const char c : text) value = (value ^ static_cast<std::uint8_t>(c)) * 0x100000001B3ULL;
  return value;
}

/// SplitMix64's finaliser.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

/// The key of a tensor's elements.
constexpr std::uint64_t key(std::uint64_t seed, std::string_view name) {
  return mix(seed + hash(name));
}

/// The 64 bits of element `index`.
constexpr std::uint64_t word(std::uint64_t tensor_key, std::uint64_t index) {
  return mix(tensor_key + (index + 1) * 0x9E3779B97F4A7C15ULL);
}

inline constexpr std::int32_t kBellMax = 131070;
inline constexpr float kBellDeviation = 37837.0F;

/// Sum of the four 16-bit fields, centred: within ±kBellMax.
constexpr std::int32_t bell(std::uint64_t bits) {
  std::int32_t sum = -kBellMax;
  for (unsigned shift = 0; shift < 64; shift += 16)
    sum += static_cast<std::int32_t>((bits >> shift) & 0xFFFFU);
  return sum;
}

}  // namespace koho::synthetic
