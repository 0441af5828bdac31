// SPDX-License-Identifier: Apache-2.0
// Synthetic weights, described instead of filled: tensors whose elements follow one rule, which
// a backend with memory of its own draws there. Views into such a tensor are cut and sliced like
// any others; only their bytes are not to be read.
#pragma once

#include <cstdint>

#include "tensor/tensor_view.h"

namespace koho {

/// Element i = dtype(offset + factor * bell(word(key, i))) of tensor/synthetic_values.h: product and
/// sum in f32, each rounded.
struct SyntheticTensor {
  DType dtype = DType::bf16;
  std::uint64_t key = 0;
  std::int64_t elements = 0;
  float factor = 0.0F;
  float offset = 0.0F;
};

/// Says which addresses are synthetic.
class SyntheticAddressMap {
 public:
  virtual ~SyntheticAddressMap() = default;

  /// A tensor, and the element at an address.
  struct Place {
    SyntheticTensor tensor;
    std::int64_t first = 0;
  };
  /// The element that lies at `address`, or false if the bytes there are real.
  virtual bool find(const std::byte* address, Place& place) const = 0;
};

}  // namespace koho
