// SPDX-License-Identifier: Apache-2.0
// A small counter-free generator for tests: the same seed gives the same numbers on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace koho::bench {

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
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1],
                values[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(i) - 1))]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace koho::bench
