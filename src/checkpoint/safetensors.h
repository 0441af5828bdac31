// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: 8 bytes little-endian length, then a JSON object of tensors.
// Checks the format's rules and nothing else: knows no model, opens no file, reads no tensor data.
// For any bytes the result is a header whose every range lies in the file, or an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace koho {

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax =
    100'000'000;  // as the format's own reader

/// One element type of the format, also those koho does not compute with.
struct StoredDType {
  std::string_view name;       // as written: "F8_E4M3"
  std::int64_t bits;           // of one element
  std::optional<DType> dtype;  // ours, if we have it
};

/// One tensor of a header. `begin` and `end` count bytes from the start of the data area, which
/// begins where the header ends.
struct SafetensorsEntry {
  std::string name;
  const StoredDType* stored = nullptr;
  Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by begin
  std::uint64_t data_offset = 0;          // of the data area in the file
};

/// Reads and validates the header of a file whose first bytes are `bytes` (the whole file, or at
/// least its header) and whose size is `file_bytes`. Accepted means: the length is at most 100 MB
/// and fits the file; the header is one JSON object in UTF-8 that starts with '{', no key twice;
/// every dtype is of the format's list, every shape has at most four axes and a product that fits;
/// each range is exactly shape times element; the ranges, sorted, cover the data area without hole,
/// overlap or trailing bytes; __metadata__ maps strings to strings. Errors: corrupt_data;
/// unsupported (a fifth axis). Memory: at most 4 times the header besides a constant.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> bytes,
                                                   std::uint64_t file_bytes);

}  // namespace koho
