// SPDX-License-Identifier: Apache-2.0
// Tensors that own their memory. Host memory comes from here; a backend hands out device memory
// with its own deleter.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/error.h"
#include "tensor/tensor_view.h"

namespace koho {

/// Owned memory with a shape. Movable, not copyable. Views borrow from it.
class Tensor {
 public:
  using Deleter = std::function<void(std::byte*)>;

  Tensor() = default;
  /// Takes over `data`, which `deleter` frees.
  Tensor(std::byte* data, Deleter deleter, DType dtype, Shape shape, DeviceId device)
      : memory_(data, std::move(deleter)), view_(data, dtype, shape, device) {}

  /// Host memory aligned to 64 bytes, filled with zeros. Errors: resource_exhausted.
  static Result<Tensor> host(DType dtype, Shape shape);

  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  bool empty() const { return view_.empty(); }

  /// The elements of a packed host tensor.
  template <typename T>
  std::span<T> span() {
    return {view_.as<T>(), static_cast<std::size_t>(view_.elements())};
  }
  template <typename T>
  std::span<const T> span() const {
    return {view_.as<T>(), static_cast<std::size_t>(view_.elements())};
  }

 private:
  std::unique_ptr<std::byte, Deleter> memory_;
  TensorView view_;
};

}  // namespace koho
