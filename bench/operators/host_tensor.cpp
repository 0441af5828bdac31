// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/host_tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/check.h"

namespace koho::bench {

double HostTensor::at(std::int64_t i) const {
  double number = 0.0;
  read(i, {&number, 1});
  return number;
}

void HostTensor::read(std::int64_t first, std::span<double> numbers) const {
  const auto convert = [&](const auto* elements) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if constexpr (std::is_arithmetic_v<std::decay_t<decltype(elements[i])>>)
        numbers[i] = static_cast<double>(elements[i]);
      else
        numbers[i] = static_cast<double>(to_float(elements[i]));
    }
  };
  switch (dtype) {
    case DType::f32:
      return convert(as<float>() + first);
    case DType::bf16:
      return convert(as<BFloat16>() + first);
    case DType::f16:
      return convert(as<Float16>() + first);
    case DType::f8_e4m3:
      return convert(as<Float8E4M3>() + first);
    case DType::i32:
      return convert(as<std::int32_t>() + first);
    case DType::i64:
      return convert(as<std::int64_t>() + first);
    case DType::u8:
      return convert(as<std::uint8_t>() + first);
  }
}

void HostTensor::set(std::int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::f32:
      as<float>()[i] = narrow;
      return;
    case DType::bf16:
      as<BFloat16>()[i] = to_bf16(narrow);
      return;
    case DType::f8_e4m3:
      as<Float8E4M3>()[i] = to_e4m3(narrow);
      return;
    case DType::i32:
      as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      as<std::int64_t>()[i] = static_cast<std::int64_t>(value);
      return;
    case DType::f16:
    case DType::u8:
      break;
  }
  KOHO_CHECK(false && "a dtype that no case sets");
}

Spread random_spread(Random& random, bool nan) {
  // Normal values as often as all others together.
  if (random.chance(0.5)) return Spread::normal;
  const auto last = static_cast<std::int64_t>(nan ? Spread::one_nan_row : Spread::extremes);
  return static_cast<Spread>(random.integer(1, last));
}

HostTensor random_values(Random& random, DType dtype, Shape shape, Spread spread, double scale) {
  HostTensor tensor(dtype, shape);
  const std::int64_t columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  if (tensor.elements() == 0) return tensor;
  const std::int64_t rows = tensor.elements() / columns;
  const std::int64_t outlier_step = random.integer(5, 60);
  const std::int64_t nan_row = random.integer(0, rows - 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    const double level = random.normal() * scale;
    const bool odd_row = random.chance(1.0 / 3.0);
    for (std::int64_t column = 0; column < columns; ++column) {
      double value = random.normal() * scale;
      if (spread == Spread::outliers && column % outlier_step == 0) value *= 100.0;
      if (spread == Spread::zero_rows && odd_row) value = random.chance(0.5) ? 0.0 : -0.0;
      if (spread == Spread::constant) value = level;
      if (spread == Spread::denormals && odd_row) value *= 1e-39;
      if (spread == Spread::extremes && random.chance(0.05))
        value = random.chance(0.5) ? 448.0 : -448.0;
      tensor.set(row * columns + column, value);
    }
    if (spread == Spread::one_nan_row && row == nan_row)
      tensor.set(row * columns + random.integer(0, columns - 1),
                 std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

HostTensor random_quantized(Random& random, Shape shape, Spread spread) {
  HostTensor quantized = random_values(random, DType::f32, shape, spread, 100.0);
  HostTensor tensor(DType::f8_e4m3, shape);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    double value = quantized.at(i);
    // Denormal quantised values lie below 2^-6.
    if (spread == Spread::denormals && std::fabs(value) < 1e-30) value *= 1e35;
    tensor.set(i, value);
  }
  return tensor;
}

HostTensor random_scales(Random& random, DType dtype, Shape shape, double scale) {
  HostTensor tensor(dtype, shape);
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    tensor.set(i, scale * std::exp(0.5 * random.normal()));
  return tensor;
}

HostTensor integers(DType dtype, const std::vector<std::int64_t>& values) {
  HostTensor tensor(dtype, {static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.set(static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  return tensor;
}

}  // namespace koho::bench
