// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/device_array.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace koho::bench {
namespace {

constexpr std::int64_t kGuardBytes = 4096;
constexpr std::byte kPoison{0xFF};

void must(const Status& status) {
  if (!status.ok()) check_failed(__FILE__, __LINE__, "a test's transfer", status.error().message);
}

}  // namespace

DeviceArray::DeviceArray(Backend& backend, DType dtype, Shape shape, std::int64_t row_gap)
    : backend_(&backend) {
  const std::int64_t columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  rows_ = columns == 0 ? 0 : shape.elements() / columns;
  row_bytes_ = columns * dtype_bytes(dtype);
  stride_bytes_ = (columns + row_gap) * dtype_bytes(dtype);
  // A few bytes for empty tensors, so that their views are not null.
  const std::int64_t bytes =
      kGuardBytes + std::max<std::int64_t>(rows_ * stride_bytes_, 64) + kGuardBytes;
  Result<Tensor> memory = backend.allocate(DType::u8, {bytes}, "test array");
  if (!memory.ok()) check_failed(__FILE__, __LINE__, "a test's memory", memory.error().message);
  memory_ = std::move(memory).value();
  view_ = TensorView(memory_.view().data + kGuardBytes, dtype, shape, backend.device());
  if (row_gap > 0) {
    KOHO_CHECK_EQ(shape.rank(), 2);
    view_.strides[0] = columns + row_gap;
  }
  poison();
}

DeviceArray::DeviceArray(Backend& backend, const HostTensor& source, std::int64_t row_gap)
    : DeviceArray(backend, source.dtype, source.shape, row_gap) {
  if (!source.empty()) set(source.bytes);
}

void DeviceArray::set(std::span<const std::byte> elements) {
  KOHO_CHECK_EQ(static_cast<std::int64_t>(elements.size()), rows_ * row_bytes_);
  std::vector<std::byte> bytes = image();
  for (std::int64_t row = 0; row < rows_; ++row)
    std::memcpy(bytes.data() + kGuardBytes + row * stride_bytes_,
                elements.data() + row * row_bytes_, static_cast<std::size_t>(row_bytes_));
  upload(bytes);
}

void DeviceArray::upload(const std::vector<std::byte>& image) {
  must(backend_->upload(memory_.view(), image));
}

std::vector<std::byte> DeviceArray::image() const {
  const ConstTensorView whole = memory_.view();
  std::vector<std::byte> bytes(static_cast<std::size_t>(whole.bytes()));
  must(backend_->download(bytes, whole));
  return bytes;
}

void DeviceArray::poison() {
  upload(std::vector<std::byte>(static_cast<std::size_t>(memory_.view().bytes()), kPoison));
}

HostTensor DeviceArray::get() const {
  HostTensor tensor(view_.dtype, view_.shape);
  const std::vector<std::byte> bytes = image();
  for (std::int64_t row = 0; row < rows_; ++row)
    std::memcpy(tensor.bytes.data() + row * row_bytes_,
                bytes.data() + kGuardBytes + row * stride_bytes_,
                static_cast<std::size_t>(row_bytes_));
  return tensor;
}

std::string DeviceArray::guard_fault(const std::string& name) const {
  const std::vector<std::byte> bytes = image();
  const auto written = [&](std::int64_t first, std::int64_t end) {
    return std::find_if(bytes.begin() + first, bytes.begin() + end,
                        [](std::byte one) { return one != kPoison; }) -
           bytes.begin();
  };
  const std::int64_t size = rows_ * stride_bytes_;
  // What lies between the rows, before the first and behind the last one.
  for (std::int64_t row = 0, first = 0; row <= rows_; ++row) {
    const std::int64_t end =
        row == rows_ ? static_cast<std::int64_t>(bytes.size()) : kGuardBytes + row * stride_bytes_;
    if (const std::int64_t found = written(first, end); found < end)
      return name + ": byte " + std::to_string(found - kGuardBytes) + " of " +
             std::to_string(size) + " was written outside the tensor\n";
    first = end + row_bytes_;
  }
  return {};
}

}  // namespace koho::bench
