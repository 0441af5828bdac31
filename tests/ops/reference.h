// SPDX-License-Identifier: Apache-2.0
// What several cases' references share: weights in every quantisation with their exact values,
// activations in every form, exact quantisation.
#pragma once

#include <vector>

#include "ops/backend.h"
#include "ops/device_array.h"
#include "ops/host_tensor.h"

namespace koho::testing {

/// Dynamic quantisation exactly as the contract of rms_norm says: values [T, K] bf16 to quantised values and
/// scales, over whole rows (block 0) or each `block` columns.
void quantize(const HostTensor& values,
              std::int64_t block,
              HostTensor& quantized,
              HostTensor& scales);

/// One random linear layer: its tensors as a checkpoint holds them, and its exact values.
struct RandomLinear {
  HostTensor storage;  // [N, K + gap]: rows may be strided
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  HostTensor scale;
  HostTensor bias;
  WeightQuant quant = WeightQuant::none;

  RandomLinear() = default;
  RandomLinear(Random& random, WeightQuant kind, std::int64_t n, std::int64_t k, bool with_bias);

  /// Views into this object.
  LinearSource source() const;
  double code(std::int64_t n, std::int64_t k) const { return storage.at(n * storage.shape[1] + k); }
  /// The multiplier of element (n, k).
  double multiplier(std::int64_t n, std::int64_t k) const;
};

/// Random activations [T, K] in every form, consistent with each other: quantised values are those of values.
struct RandomActivation {
  HostTensor values;
  HostTensor quantized;
  HostTensor scales;
  HostTensor block_quantized;
  HostTensor block_scales;

  RandomActivation() = default;
  /// Quantises `values` in both ways.
  explicit RandomActivation(HostTensor bf16_values);
  /// Row `row` alone.
  RandomActivation row(std::int64_t index) const;
  /// The value that a reader of `quant` sees.
  double value(WeightQuant quant, std::int64_t t, std::int64_t k) const;
};

/// A RandomActivation on a device, in the forms that `needs` asks for, rows strided where allowed.
class DeviceActivation {
 public:
  DeviceActivation(Backend& backend,
                   const RandomActivation& source,
                   const ActivationNeeds& needs,
                   std::int64_t row_gap);
  /// Poisoned outputs [T, K].
  DeviceActivation(Backend& backend,
                   std::int64_t tokens,
                   std::int64_t columns,
                   const ActivationNeeds& needs);
  Activation view() const;
  /// Quantised forms against the bf16 values, and the guard bands. Requires: values are there.
  std::string check_quantized(const std::string& name) const;
  std::string guard_fault(const std::string& name) const;

  DeviceArray values, quantized, scales, block_quantized, block_scales;

 private:
  ActivationNeeds needs_;
};

/// y[t, n] in float64 without the final rounding, and sum |x w| of every element. `steps` is the
/// sum of squares of the largest term of every 32 columns, products and what precedes them in their
/// 256 (128 under block scales) alike: of what a tensor core's FP8 instruction rounds to.
struct LinearReference {
  std::vector<double> sums;
  std::vector<double> magnitudes;
  std::vector<double> steps;
};
LinearReference linear_reference(const RandomLinear& weight,
                                 const RandomActivation& x,
                                 std::int64_t tokens);

/// A row of a tensor [rows, columns] as a tensor of one row.
HostTensor row_of(const HostTensor& tensor, std::int64_t row);

/// The backend's error, if there is one, as a case reports it.
std::string fault_of(const std::string& op, const Status& status);

}  // namespace koho::testing
