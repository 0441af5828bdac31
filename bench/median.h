// SPDX-License-Identifier: Apache-2.0
// What a bench makes of several readings.
#pragma once

#include <algorithm>
#include <vector>

namespace koho::bench {

/// The upper one of an even number. Requires: one reading at least.
inline double median(std::vector<double> readings) {
  std::sort(readings.begin(), readings.end());
  return readings[readings.size() / 2];
}

}  // namespace koho::bench
