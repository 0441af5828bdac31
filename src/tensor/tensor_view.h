// SPDX-License-Identifier: Apache-2.0
// Borrowed tensors: a pointer, up to four sizes and strides, a dtype and a device, passed by value.
// Owning memory is Tensor (tensor/tensor.h). Shapes in comments use the letters of docs/model.md: T
// tokens, S sequences, H hidden, Q query heads, K key/value heads, D head width, F FFN width, E
// experts, A experts per token, V vocabulary, N pages, P tokens per page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace koho {

/// Where bytes live. `index` numbers the GPUs of this process; 0 for the host.
struct DeviceId {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  std::int8_t index = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

inline constexpr int kRankMax = 4;

/// Sizes of up to four axes.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes)
      : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
    KOHO_CHECK_LE(rank_, kRankMax);
    for (int axis = 0; axis < rank_; ++axis) {
      KOHO_CHECK_GE(sizes[static_cast<std::size_t>(axis)], 0);
      sizes_[static_cast<std::size_t>(axis)] = sizes[static_cast<std::size_t>(axis)];
    }
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const {
    KOHO_DCHECK(axis >= 0 && axis < rank_);
    return sizes_[static_cast<std::size_t>(axis)];
  }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= sizes_[static_cast<std::size_t>(axis)];
    return product;
  }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kRankMax> sizes_{};
  int rank_ = 0;
};

/// "[3, 128]".
std::string to_string(const Shape& shape);

/// A view of elements of `Byte` bytes (std::byte, or const std::byte). An empty view (data ==
/// nullptr) means "absent" where a contract allows it. Strides count elements.
template <typename Byte>
struct BasicTensorView {
  Byte* data = nullptr;
  Shape shape;
  std::array<std::int64_t, kRankMax> strides{};
  DType dtype = DType::f32;
  DeviceId device;

  BasicTensorView() = default;
  /// A packed view.
  BasicTensorView(Byte* pointer, DType type, Shape sizes, DeviceId place = {})
      : data(pointer), shape(sizes), dtype(type), device(place) {
    std::int64_t stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      strides[static_cast<std::size_t>(axis)] = stride;
      stride *= shape[axis];
    }
  }
  /// A mutable view reads as a const one.
  template <typename Other>
  requires(std::is_same_v<Byte, const Other>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT
      : data(other.data),
        shape(other.shape),
        strides(other.strides),
        dtype(other.dtype),
        device(other.device) {}

  bool empty() const { return data == nullptr; }
  std::int64_t size(int axis) const { return shape[axis]; }
  std::int64_t stride(int axis) const { return strides[static_cast<std::size_t>(axis)]; }
  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * dtype_bytes(dtype); }
  bool packed() const { return *this == BasicTensorView(data, dtype, shape, device); }
  /// The last axis has stride 1 (or at most one element).
  bool rows_packed() const {
    return shape.rank() == 0 || shape[shape.rank() - 1] <= 1 || stride(shape.rank() - 1) == 1;
  }

  /// The elements as T, which must have the dtype's size. Host views only.
  template <typename T>
  auto as() const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    KOHO_DCHECK(static_cast<std::int64_t>(sizeof(T)) == dtype_bytes(dtype));
    return reinterpret_cast<Element*>(data);
  }

  /// Elements begin..begin+count-1 of `axis`.
  BasicTensorView slice(int axis, std::int64_t begin, std::int64_t count) const {
    KOHO_CHECK(begin >= 0 && count >= 0 && begin + count <= shape[axis]);
    BasicTensorView part = *this;
    part.data = data + begin * stride(axis) * dtype_bytes(dtype);
    std::array<std::int64_t, kRankMax> sizes{};
    for (int i = 0; i < shape.rank(); ++i)
      sizes[static_cast<std::size_t>(i)] = i == axis ? count : shape[i];
    part.shape =
        Shape(std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(shape.rank())));
    return part;
  }
  /// The same elements in another shape. Requires: packed, as many elements.
  BasicTensorView reshape(Shape sizes) const {
    KOHO_CHECK(packed());
    KOHO_CHECK_EQ(sizes.elements(), elements());
    return BasicTensorView(data, dtype, sizes, device);
  }
  /// The first `count` rows.
  BasicTensorView first(std::int64_t count) const { return slice(0, 0, count); }
  /// Element `index` of the first axis: one rank less.
  BasicTensorView at(std::int64_t index) const {
    KOHO_CHECK(shape.rank() > 0 && index >= 0 && index < shape[0]);
    BasicTensorView part = *this;
    part.data = data + index * strides[0] * dtype_bytes(dtype);
    std::array<std::int64_t, kRankMax> sizes{};
    for (int i = 1; i < shape.rank(); ++i) {
      sizes[static_cast<std::size_t>(i - 1)] = shape[i];
      part.strides[static_cast<std::size_t>(i - 1)] = strides[static_cast<std::size_t>(i)];
    }
    part.strides[static_cast<std::size_t>(shape.rank() - 1)] = 0;
    part.shape = Shape(
        std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(shape.rank() - 1)));
    return part;
  }

  friend bool operator==(const BasicTensorView&, const BasicTensorView&) = default;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

static_assert(sizeof(TensorView) <= 96);

/// "BF16 [3, 128]".
std::string describe(const ConstTensorView& view);

}  // namespace koho
