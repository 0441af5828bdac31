// SPDX-License-Identifier: Apache-2.0
// A small counter-free generator for tests: the same seed gives the same numbers on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace koho::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits();
  /// Uniform in low..high, both included.
  std::int64_t integer(std::int64_t low, std::int64_t high);
  /// One of the values.
  std::int64_t pick(std::initializer_list<std::int64_t> values);
  bool chance(double probability) { return uniform() < probability; }
  /// Uniform in [0, 1).
  double uniform();
  double normal();

 private:
  std::uint64_t state_;
};

}  // namespace koho::testing
