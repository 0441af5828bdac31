// SPDX-License-Identifier: Apache-2.0
// The simulation's only source of chance: one 64-bit seed, one execution.
#pragma once

#include <cstdint>

namespace koho::simulation {

/// Mixes two words into one (the finaliser of splitmix64 over their combination).
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15U + b + 0x2545f4914f6cdd1dU;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mix(0, state_ += 0x9e3779b97f4a7c15U); }
  /// low..high, both included.
  std::int32_t in(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(next() % (static_cast<std::uint64_t>(high - low) + 1));
  }
  /// True `per_mille` times in a thousand.
  bool chance(std::int32_t per_mille) { return in(0, 999) < per_mille; }

 private:
  std::uint64_t state_;
};

}  // namespace koho::simulation
