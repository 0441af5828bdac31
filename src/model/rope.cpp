// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <cmath>
#include <vector>

namespace koho {

Result<Tensor> make_rope_table(std::int64_t positions, std::int64_t rotary, double theta) {
  const std::int64_t half = rotary / 2;
  KOHO_TRY_ASSIGN(Tensor table, Tensor::host(DType::f32, {positions, 2, half}));
  std::vector<float> frequencies(static_cast<std::size_t>(half));
  for (std::int64_t j = 0; j < half; ++j)
    frequencies[static_cast<std::size_t>(j)] = static_cast<float>(
        std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(rotary)));
  float* row = table.view().as<float>();
  for (std::int64_t position = 0; position < positions; ++position, row += 2 * half) {
    for (std::int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(position) * frequencies[static_cast<std::size_t>(j)];
      row[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[half + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace koho
