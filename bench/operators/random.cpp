// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/random.h"

#include <cmath>
#include <numbers>

namespace koho::bench {

std::uint64_t Random::bits() {
  // SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

std::int64_t Random::integer(std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
}

std::int64_t Random::pick(std::initializer_list<std::int64_t> values) {
  return values.begin()[integer(0, static_cast<std::int64_t>(values.size()) - 1)];
}

double Random::uniform() {
  return static_cast<double>(bits() >> 11U) * 0x1p-53;
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace koho::bench
