// SPDX-License-Identifier: Apache-2.0
// For tests of what something costs, beside other processes: processor time of this thread so far.
#pragma once

#include "base/clock.h"

namespace koho::testing {

inline double thread_us() {
  return 1e-3 * static_cast<double>(thread_ns());
}

inline double thread_seconds() {
  return 1e-9 * static_cast<double>(thread_ns());
}

/// How many times as much a text in 8,000 pieces costs as in one. `run` gets the number of pieces,
/// and times itself: what it makes first does not count.
template <typename Run>
double cost_of_pieces(const Run& run) {
  const double whole = run(std::size_t{1});
  return run(std::size_t{8000}) / whole;
}

}  // namespace koho::testing
