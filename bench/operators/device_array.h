// SPDX-License-Identifier: Apache-2.0
// Tensors on a backend's device, each between two guard bands: what an operator writes outside its
// tensor is found. Outputs begin as 0xFF bytes, which are NaN in every float dtype: what an
// operator leaves unwritten is found.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/operators/host_tensor.h"
#include "ops/backend.h"

namespace koho::bench {

/// A tensor on the device. With `row_gap`, rows are strided by so many elements more than their
/// width, and the gaps are guarded as well.
class DeviceArray {
 public:
  DeviceArray() = default;
  /// A poisoned output.
  DeviceArray(Backend& backend, DType dtype, Shape shape, std::int64_t row_gap = 0);
  /// A copy of `source`.
  DeviceArray(Backend& backend, const HostTensor& source, std::int64_t row_gap = 0);

  TensorView view() const { return view_; }
  /// The elements, packed.
  HostTensor get() const;
  /// Poisons it again, guard bands included.
  void poison();
  /// New elements, packed.
  void set(std::span<const std::byte> elements);
  /// "" if the guard bands and gaps are untouched, else where they are not.
  std::string guard_fault(const std::string& name) const;

 private:
  void upload(const std::vector<std::byte>& image);
  std::vector<std::byte> image() const;

  Backend* backend_ = nullptr;
  Tensor memory_;
  TensorView view_;
  std::int64_t rows_ = 0;
  std::int64_t row_bytes_ = 0;     // of elements
  std::int64_t stride_bytes_ = 0;  // from row to row
};

}  // namespace koho::bench
