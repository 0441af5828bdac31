// SPDX-License-Identifier: Apache-2.0
// Relative L2 by row, and the median.
#include "tests/golden/distance.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace koho::testing {

double median_distance(std::span<const float> found,
                       std::span<const float> expected,
                       std::size_t width) {
  std::vector<double> distances;
  for (std::size_t row = 0; row < found.size(); row += width) {
    double difference = 0.0;
    double length = 0.0;
    for (std::size_t i = row; i < row + width; ++i) {
      const double d = static_cast<double>(found[i]) - static_cast<double>(expected[i]);
      difference += d * d;
      length += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    distances.push_back(std::sqrt(difference / length));
    // A NaN sorts nowhere: it must not hide in a median.
    if (!std::isfinite(distances.back())) return distances.back();
  }
  std::sort(distances.begin(), distances.end());
  const std::size_t half = distances.size() / 2;
  return distances.size() % 2 == 1 ? distances[half] : (distances[half - 1] + distances[half]) / 2;
}

}  // namespace koho::testing
