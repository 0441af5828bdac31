// SPDX-License-Identifier: Apache-2.0
// Synthetic weights that are described, not filled: the host holds only a rule for each tensor, and
// a backend with device memory computes the elements there. Views into such a tensor are cut and
// sliced as any others; nobody may read their bytes on the host, which do not exist.
#pragma once

#include <cstdint>

#include "tensor/tensor_view.h"

namespace koho {

/// Element i = dtype(offset + factor * bell(word(key, i))), with bell() and word() of
/// tensor/synthetic_values.h. Multiplication and addition are in f32, each rounded.
struct SyntheticTensor {
  DType dtype = DType::bf16;
  std::uint64_t key = 0;
  std::int64_t elements = 0;
  float factor = 0.0F;
  float offset = 0.0F;
};

/// Tells which addresses belong to synthetic tensors.
class SyntheticAddressMap {
 public:
  virtual ~SyntheticAddressMap() = default;

  /// A tensor, and the index of its element at an address.
  struct Place {
    SyntheticTensor tensor;
    std::int64_t first = 0;
  };
  /// Finds the element at `address`; false if real bytes lie there.
  virtual bool find(const std::byte* address, Place& place) const = 0;
};

}  // namespace koho
