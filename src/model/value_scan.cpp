// SPDX-License-Identifier: Apache-2.0
#include "model/value_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/printable.h"
#include "model/rank_sources.h"
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

/// What is scanned: for the error's text.
struct Scanned {
  std::string name;  // "tensor 'x' in file y"
  bool is_scale = false;
};

Scanned scanned(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  return {fmt::format("tensor '{}' in {}", printable(tensor.name), checkpoint.file_name(tensor)),
          tensor.name.find(".weight_scale") != std::string_view::npos};
}

/// Scans `bytes`; their first element is number `first` of what is scanned.
template <typename T>
Status scan(const Scanned& what, std::span<const std::byte> bytes, std::int64_t first) {
  const std::int64_t bad = find_bad<T>(bytes, what.is_scale);
  if (bad < 0) return {};
  return make_error(ErrorCode::corrupt_data, "{} holds {} at element {}; expected a {} number",
                    what.name,
                    value_at<T>(bytes.data() + static_cast<std::size_t>(bad) * sizeof(T)),
                    first + bad, what.is_scale ? "finite, non-negative" : "finite");
}

Status scan(const Scanned& what,
            std::optional<DType> dtype,
            std::span<const std::byte> bytes,
            std::int64_t first = 0) {
  if (dtype == DType::f32) return scan<float>(what, bytes, first);
  if (dtype == DType::bf16) return scan<BFloat16>(what, bytes, first);
  if (dtype == DType::f8_e4m3) return scan<Float8E4M3>(what, bytes, first);
  return {};
}

/// Scans a part of a tensor, row by row.
Status scan(const Scanned& what, const ConstTensorView& view) {
  if (view.packed())
    return scan(what, view.dtype, {view.data, static_cast<std::size_t>(view.bytes())});
  const auto row_bytes = static_cast<std::size_t>(view.size(1) * dtype_bytes(view.dtype));
  for (std::int64_t row = 0; row < view.size(0); ++row)
    KOHO_TRY(scan(what, view.dtype, {view.at(row).data, row_bytes}, row * view.size(1)));
  return {};
}

}  // namespace

Status scan_values(const Checkpoint& checkpoint) {
  for (const CheckpointTensor& tensor : checkpoint.tensors())
    KOHO_TRY(scan(scanned(checkpoint, tensor), tensor.stored->dtype, tensor.bytes));
  return {};
}

Status scan_values(const Checkpoint& checkpoint, const ModelSources& part) {
  std::vector<const CheckpointTensor*> by_address;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) by_address.push_back(&tensor);
  std::ranges::sort(by_address, {}, [](const CheckpointTensor* t) { return t->bytes.data(); });
  Status status;
  for_each_source(part, [&](const ConstTensorView& view, SourcePart role) {
    if (!status.ok()) return;
    const auto behind = std::ranges::upper_bound(
        by_address, view.data, {}, [](const CheckpointTensor* t) { return t->bytes.data(); });
    const CheckpointTensor* tensor = behind == by_address.begin() ? nullptr : *(behind - 1);
    const bool is_mapped =
        tensor != nullptr && view.data < tensor->bytes.data() + tensor->bytes.size();
    status = scan(is_mapped ? scanned(checkpoint, *tensor)
                            : Scanned{"a tensor that its file has misaligned or narrower",
                                      role == SourcePart::scale},
                  view);
  });
  return status;
}

}  // namespace koho
