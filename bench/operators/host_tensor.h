// SPDX-License-Identifier: Apache-2.0
// Values on the host: packed tensors filled from the distributions that operators must survive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/operators/random.h"
#include "tensor/number.h"
#include "tensor/tensor_view.h"

namespace koho::bench {

/// A packed tensor in host memory, and its elements as numbers.
struct HostTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  HostTensor() = default;
  HostTensor(DType type, Shape sizes)
      : dtype(type),
        shape(sizes),
        bytes(static_cast<std::size_t>(sizes.elements() * dtype_bytes(type))) {}

  ConstTensorView view() const { return {bytes.data(), dtype, shape}; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  std::int64_t elements() const { return shape.elements(); }
  /// Element `i` of the packed order as a number (integers too).
  double at(std::int64_t i) const;
  /// The numbers from element `first` on.
  void read(std::int64_t first, std::span<double> numbers) const;
  /// Rounds to the dtype.
  void set(std::int64_t i, double value);
  bool empty() const { return bytes.empty(); }
};

/// How the rows of a tensor are drawn.
enum class Spread : std::uint8_t {
  normal,
  outliers,    // a few columns are 100 times larger
  zero_rows,   // a third of the rows are zeros
  constant,    // all elements of a row are equal
  denormals,   // below the dtype's smallest normal number, among normal rows
  extremes,    // ±448 and the like
  one_nan_row  // one row holds a NaN
};

/// A spread at random; NaN rows only where `nan` allows them.
Spread random_spread(Random& random, bool nan);

/// bf16 or f32 values [rows, columns], about `scale` large.
HostTensor random_values(
    Random& random, DType dtype, Shape shape, Spread spread, double scale = 1.0);

/// E4M3 values of normal values with the row's largest near 448, as a quantiser leaves them. NaN
/// occurs nowhere but in Spread::one_nan_row.
HostTensor random_quantized(Random& random, Shape shape, Spread spread);

/// Positive scales around `scale`.
HostTensor random_scales(Random& random, DType dtype, Shape shape, double scale);

HostTensor integers(DType dtype, const std::vector<std::int64_t>& values);

}  // namespace koho::bench
