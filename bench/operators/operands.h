// SPDX-License-Identifier: Apache-2.0
// Operands of the operator cases: made once on the host, where a reference reads them, and copied
// to the backend that is measured or tested.
//
// Guarded operands are a parity test's: each lies between guard bands, results begin as poison, and
// there is no second backend, because a float64 reference judges. Others are a timing's: plain
// memory, and a CPU backend that computes the same call for comparison.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/operators/device_array.h"
#include "bench/operators/host_tensor.h"
#include "bench/operators/random.h"
#include "bench/operators/synthetic.h"
#include "ops/backend.h"

namespace koho::bench {

enum class Side : std::uint8_t { measured, reference };

/// A thing that each side has. In guarded operands the reference side is the host's copy of an
/// input, and empty for a result.
template <typename T>
struct Sides {
  T measured{};
  T reference{};

  const T& on(Side side) const { return side == Side::measured ? measured : reference; }
};

/// Where cases are built.
struct BenchBackends {
  Backend& measured;
  /// A CPU backend, which reads the operands where they were made; null for guarded operands.
  Backend* reference = nullptr;
  double rotated_bytes = 0.0;  // distinct weights of one case; 0: one copy of them
};

inline constexpr std::int64_t kRowsCompared = 4;  // in a run; three runs of a case's rows

/// Everything one case owns.
class Operands {
 public:
  using Draw = std::function<double()>;

  /// Operands of a timing.
  explicit Operands(const BenchBackends& site) : site_(site) {}
  /// Guarded operands, whose random numbers follow from `seed`, of one backend, or of several that
  /// read each other's memory. Weights are placed on each; the first is in use.
  Operands(std::vector<Backend*> tested, std::uint64_t seed)
      : site_{*tested.at(0), nullptr, 0.0},
        guarded_(true),
        random_(seed),
        tested_(std::move(tested)),
        unused_(tested_.size()) {}

  /// Calls of the measured side go to tested backend `index` from here on.
  void use(std::size_t index);
  /// Requires: the side has a backend.
  Backend& backend(Side side) const {
    if (side == Side::reference) return *site_.reference;
    return guarded_ ? *tested_[used_] : site_.measured;
  }
  const BenchBackends& site() const { return site_; }
  bool guarded() const { return guarded_; }
  Random& random() { return random_; }

  // ---- inputs

  /// Host values; a block of some million random elements repeated.
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
  /// Takes `values` over; the measured side's rows are strided by `row_gap` elements more.
  Result<Sides<TensorView>> input(HostTensor values, std::int64_t row_gap = 0);
  /// Host values on both sides; and once more on the measured one.
  Result<Sides<TensorView>> both(TensorView values);
  Result<TensorView> copy(ConstTensorView values);
  /// The forms of `x` that `needs` names; the rows of x.values strided.
  Result<Sides<Activation>> activation(const SyntheticActivation& x,
                                       const ActivationNeeds& needs,
                                       std::int64_t row_gap = 0);
  /// bf16 values, and e4m3 values with a scale a row (or a block of 128 columns), each random.
  Result<Sides<Activation>> activation(std::int64_t tokens,
                                       std::int64_t width,
                                       bool blocks = false);
  /// Normal bf16 weights, or normal e4m3 weights with scales of about 0.01.
  Result<LinearSource> source(std::int64_t rows, std::int64_t columns, WeightQuant quant);

  // ---- results

  /// Uninitialised, or poison.
  Result<Sides<TensorView>> output(DType dtype, const Shape& shape, std::int64_t row_gap = 0);
  /// Poisoned results [T, width] in the forms that `needs` names.
  Result<Sides<Activation>> output_activation(std::int64_t tokens,
                                              std::int64_t width,
                                              const ActivationNeeds& needs);
  /// What operators change in place, with these host values to begin with; they are left alone.
  Result<Sides<TensorView>> changing(ConstTensorView before);
  /// Guarded: the elements of the measured side's tensor, packed.
  HostTensor get(const TensorView& view) const;
  /// Guarded: `before` again, or poison if that is empty.
  void restore(const TensorView& view, const ConstTensorView& before);
  /// Guarded: "" if no byte beside a tensor was written, else which.
  std::string guard_fault() const;

  // ---- weights and scratch memory

  /// On both sides; `copies` of it on the measured one.
  Status place_linear(std::span<const LinearSource> blocks, std::int64_t copies = 1);
  Status place_experts(const ExpertsSource& source, std::int64_t copies = 1);
  Status reserve(const StepLimits& limits);

  double normal() { return random_.normal(); }
  Draw normals() {
    return [this] { return normal(); };
  }
  /// 0.5 .. 1.5 times `middle`.
  Draw about(double middle) {
    return [this, middle] { return middle * (0.5 + random_.uniform()); };
  }
  /// 0, 1, 2, …
  static Draw counting() {
    return [next = 0.0]() mutable { return next++; };
  }

  Sides<std::vector<Linear>> linears;
  Sides<std::vector<Experts>> experts;

 private:
  struct Placed {
    std::vector<Linear> linears;
    std::vector<Experts> experts;
  };
  Result<TensorView> host_bytes(DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  const DeviceArray& array_of(const TensorView& view) const;
  Status on_each_tested(const std::function<Status()>& place);

  BenchBackends site_;
  bool guarded_ = false;
  Random random_{1};
  std::vector<Backend*> tested_;
  std::vector<Placed> unused_;  // of the tested backends but the one in use
  std::size_t used_ = 0;
  std::deque<Tensor> tensors_;
  std::deque<HostTensor> values_;
  std::deque<DeviceArray> arrays_;
};

}  // namespace koho::bench
