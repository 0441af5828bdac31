// SPDX-License-Identifier: Apache-2.0
// Operands of the operator cases: drawn once on the host, where the reference reads them, and
// copied to the backend that is measured.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace koho::app {

enum class Side : std::uint8_t { measured, reference };

/// A thing that each side has.
template <typename T>
struct Sides {
  T measured{};
  T reference{};

  const T& on(Side side) const { return side == Side::measured ? measured : reference; }
};

/// Where cases are built.
struct BenchBackends {
  Backend& measured;
  Backend& reference;          // a CPU backend: reads the operands where they were drawn
  double rotated_bytes = 0.0;  // distinct weights of one case; 0: one copy of them
};

inline constexpr std::int64_t kRowsCompared = 4;  // in a run; three runs of a case's rows

/// Everything one case owns.
class Operands {
 public:
  using Draw = std::function<double()>;

  explicit Operands(const BenchBackends& site) : site_(site) {}

  Backend& backend(Side side) const {
    return side == Side::measured ? site_.measured : site_.reference;
  }
  const BenchBackends& site() const { return site_; }
  std::mt19937& random() { return random_; }

  /// Host values; a block of some million drawn elements repeated.
  Result<TensorView> host(DType dtype, const Shape& shape, const Draw& draw);
  template <typename T>
  Result<TensorView> host_values(DType dtype, const Shape& shape, const std::vector<T>& values) {
    return host_bytes(dtype, shape, std::as_bytes(std::span(values)));
  }
  /// The same values on both sides.
  Result<Sides<TensorView>> input(DType dtype, const Shape& shape, const Draw& draw);
  template <typename T>
  Result<Sides<TensorView>> input(DType dtype, const Shape& shape, const std::vector<T>& values) {
    KOHO_TRY_ASSIGN(const TensorView view, host_values(dtype, shape, values));
    return both(view);
  }
  /// Host values on both sides; and once more on the measured one.
  Result<Sides<TensorView>> both(TensorView values);
  Result<TensorView> copy(ConstTensorView values);
  /// Uninitialised.
  Result<Sides<TensorView>> output(DType dtype, const Shape& shape);
  /// What operators change in place, with these host values to begin with; they are left alone.
  Result<Sides<TensorView>> changing(ConstTensorView before);
  /// bf16 values, and e4m3 values with a scale a row (or a block of 128 columns), drawn apart.
  Result<Sides<Activation>> activation(std::int64_t tokens,
                                       std::int64_t width,
                                       bool blocks = false);
  /// Normal quantised values or values with scales of about 0.01.
  Result<LinearSource> source(std::int64_t rows, std::int64_t columns, WeightQuant quant);

  /// On both sides.
  Status reserve(const StepLimits& limits);

  double normal() { return normal_(random_); }
  Draw normals() {
    return [this] { return normal(); };
  }
  /// 0.5 .. 1.5 times `middle`.
  Draw about(double middle) {
    return [this, middle] { return middle * (0.5 + uniform_(random_)); };
  }
  /// 0, 1, 2, …
  static Draw counting() {
    return [next = 0.0]() mutable { return next++; };
  }

  Sides<std::vector<Linear>> linears;
  Sides<std::vector<Experts>> experts;

 private:
  Result<TensorView> host_bytes(DType dtype, const Shape& shape, std::span<const std::byte> bytes);

  BenchBackends site_;
  std::mt19937 random_{1};
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::deque<Tensor> tensors_;
};

}  // namespace koho::app
