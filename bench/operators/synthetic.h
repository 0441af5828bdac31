// SPDX-License-Identifier: Apache-2.0
// Synthetic operands that a float64 reference can read: weights in every quantisation with their
// exact values, activations in every form, exact quantisation.
#pragma once

#include <vector>

#include "bench/operators/host_tensor.h"
#include "ops/backend.h"

namespace koho::bench {

/// Dynamic quantisation exactly as the contract of rms_norm says: values [T, K] bf16 to quantised
/// values and scales, over whole rows (block 0) or each `block` columns.
void quantize(const HostTensor& values,
              std::int64_t block,
              HostTensor& quantized,
              HostTensor& scales);

/// One random linear layer: its tensors as a checkpoint holds them, and its exact values.
struct SyntheticLinear {
  HostTensor storage;  // [N, K + gap]: rows may be strided
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  HostTensor scale;
  HostTensor bias;
  WeightQuant quant = WeightQuant::none;

  SyntheticLinear() = default;
  SyntheticLinear(Random& random, WeightQuant kind, std::int64_t n, std::int64_t k, bool with_bias);

  /// Views into this object.
  LinearSource source() const;
  /// Row `n`: the stored elements, each times its scale.
  std::vector<double> row(std::int64_t n) const;
};

/// Activations [T, K] in every form, consistent with each other: quantised values are those of
/// `values`.
struct SyntheticActivation {
  HostTensor values;
  HostTensor quantized;
  HostTensor scales;
  HostTensor block_quantized;
  HostTensor block_scales;

  SyntheticActivation() = default;
  /// Quantises `values` in both ways.
  explicit SyntheticActivation(HostTensor bf16_values);
  /// Row `row` alone.
  SyntheticActivation row(std::int64_t index) const;
  /// Those rows, in that order.
  SyntheticActivation rows(const std::vector<std::int64_t>& indices) const;
  /// Row `t` as a reader of `quant` sees it.
  std::vector<double> seen(WeightQuant quant, std::int64_t t) const;
};

/// A row of a tensor [rows, columns] as a tensor of one row; of a tensor [rows], one element.
HostTensor row_of(const HostTensor& tensor, std::int64_t row);
/// Those rows of a tensor [rows, columns].
HostTensor rows_of(const HostTensor& tensor, const std::vector<std::int64_t>& rows);
/// Gives row `row` of `to` the values of that row of `from`, which has the same shape.
void copy_row(const HostTensor& from, std::int64_t row, HostTensor& to);

}  // namespace koho::bench
