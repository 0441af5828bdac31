// SPDX-License-Identifier: Apache-2.0
#include "model/value_scan.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include "base/printable.h"
#include "tensor/number.h"

namespace koho {
namespace {

template <typename T>
float value_at(const std::byte* data) {
  T stored;
  std::memcpy(&stored, data, sizeof(T));  // the file may have it misaligned
  if constexpr (std::is_same_v<T, float>)
    return stored;
  else
    return to_float(stored);
}

/// The first element that is not finite (or, for a scale, below 0), or -1.
template <typename T>
std::int64_t find_bad(std::span<const std::byte> bytes, bool is_scale) {
  const std::size_t count = bytes.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = value_at<T>(bytes.data() + i * sizeof(T));
    if (!std::isfinite(value) || (is_scale && value < 0.0F)) return static_cast<std::int64_t>(i);
  }
  return -1;
}

template <typename T>
Status scan(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  const bool is_scale = tensor.name.find(".weight_scale") != std::string_view::npos;
  const std::int64_t bad = find_bad<T>(tensor.bytes, is_scale);
  if (bad < 0) return {};
  return make_error(ErrorCode::corrupt_data,
                    "tensor '{}' in {} holds {} at element {}; expected a {} number",
                    printable(tensor.name), checkpoint.file_name(tensor),
                    value_at<T>(tensor.bytes.data() + static_cast<std::size_t>(bad) * sizeof(T)),
                    bad, is_scale ? "finite, non-negative" : "finite");
}

}  // namespace

Status scan_values(const Checkpoint& checkpoint) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const std::optional<DType> dtype = tensor.stored->dtype;
    if (dtype == DType::f32) KOHO_TRY(scan<float>(checkpoint, tensor));
    if (dtype == DType::bf16) KOHO_TRY(scan<BFloat16>(checkpoint, tensor));
    if (dtype == DType::f8_e4m3) KOHO_TRY(scan<Float8E4M3>(checkpoint, tensor));
  }
  return {};
}

}  // namespace koho
