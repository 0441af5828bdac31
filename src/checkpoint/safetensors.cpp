// SPDX-License-Identifier: Apache-2.0
// The header as events, then the ranges: each tensor's bytes fit its shape, none overlap, none are
// left over.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>

#include "base/arithmetic.h"
#include "base/json.h"
#include "base/printable.h"

namespace koho {
namespace {

constexpr std::array<StoredDType, 20> kStoredDTypes{{
    {"F32", 32, DType::f32},        {"BF16", 16, DType::bf16},    {"F16", 16, DType::f16},
    {"F8_E4M3", 8, DType::f8_e4m3}, {"I32", 32, DType::i32},      {"I64", 64, DType::i64},
    {"U8", 8, DType::u8},           {"BOOL", 8, std::nullopt},    {"I8", 8, std::nullopt},
    {"I16", 16, std::nullopt},      {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},      {"F64", 64, std::nullopt},    {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},   {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},        {"C64", 64, std::nullopt},
}};

constexpr std::size_t kStringBytesMax = 1U << 16U;  // of a tensor name or a metadata value
constexpr int kHeaderDepthMax = 3;                  // header, tensor, shape

/// Fills the entries from the events of the header's JSON.
class HeaderEvents : public json::Events {
 public:
  explicit HeaderEvents(std::size_t entries_expected) { entries_.reserve(entries_expected); }

  Status begin_object() override {
    switch (place_) {
      case Place::start:
        place_ = Place::top;
        return {};
      case Place::tensor_value:
        place_ = Place::tensor;
        return {};
      case Place::metadata_value:
        place_ = Place::metadata;
        return {};
      default:
        return unexpected("an object");
    }
  }
  Status end_object() override {
    if (place_ == Place::tensor) KOHO_TRY(check_complete());
    place_ = place_ == Place::top ? Place::finished : Place::top;
    return {};
  }
  Status key(std::string name) override {
    switch (place_) {
      case Place::top:
        return tensor_key(std::move(name));
      case Place::metadata:
        metadata_keys_.push_back(std::move(name));
        place_ = Place::metadata_text;
        return {};
      default:
        return field_key(name);
    }
  }
  Status string(std::string value) override {
    if (place_ == Place::metadata_text) {
      place_ = Place::metadata;
      return {};
    }
    if (place_ != Place::dtype) return unexpected("a string");
    const auto found = std::find_if(kStoredDTypes.begin(), kStoredDTypes.end(),
                                    [&](const StoredDType& row) { return row.name == value; });
    if (found == kStoredDTypes.end())
      return bad("has the dtype '{}', which the format does not know", printable(value));
    entries_.back().stored = &*found;
    place_ = Place::tensor;
    return {};
  }
  Status begin_array() override {
    if (place_ != Place::shape_value && place_ != Place::offsets_value)
      return unexpected("an array");
    place_ = place_ == Place::shape_value ? Place::shape : Place::offsets;
    num_numbers_ = 0;
    return {};
  }
  Status integer(std::int64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("an integer");
    if (value < 0) return bad("has the negative number {} in its {}", value, array_name());
    if (num_numbers_ == numbers_.size()) {
      if (place_ == Place::shape)
        return make_error(ErrorCode::unsupported, "tensor '{}' has more than {} axes",
                          printable(entries_.back().name), kRankMax);
      return bad("has more than two data_offsets");
    }
    numbers_[num_numbers_++] = value;
    return {};
  }
  Status end_array() override {
    SafetensorsEntry& entry = entries_.back();
    if (place_ == Place::shape) {
      entry.shape = Shape(std::span<const std::int64_t>(numbers_.data(), num_numbers_));
    } else {
      if (num_numbers_ != 2) return bad("has {} data_offsets; expected 2", num_numbers_);
      entry.begin = static_cast<std::uint64_t>(numbers_[0]);
      entry.end = static_cast<std::uint64_t>(numbers_[1]);
    }
    place_ = Place::tensor;
    return {};
  }
  Status null() override { return unexpected("null"); }
  Status boolean(bool) override { return unexpected("a boolean"); }
  Status real(double) override { return unexpected("a number with a fraction"); }

  std::vector<SafetensorsEntry>& entries() { return entries_; }
  std::vector<std::string>& metadata_keys() { return metadata_keys_; }

 private:
  enum class Place : std::uint8_t {
    start,
    top,             // in the header, before a tensor's name or the end
    tensor_value,    // after a tensor's name
    tensor,          // in a tensor, before a field's name or the end
    dtype,           // after "dtype"
    shape_value,     // after "shape"
    shape,           // in its array
    offsets_value,   // after "data_offsets"
    offsets,         // in its array
    metadata_value,  // after "__metadata__"
    metadata,        // in it, before a key or the end
    metadata_text,   // after a key of it
    finished
  };

  template <typename... Args>
  Error bad(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::corrupt_data, "tensor '{}' {}", printable(entries_.back().name),
                      fmt::format(format, std::forward<Args>(args)...));
  }

  Error unexpected(std::string_view found) const {
    switch (place_) {
      case Place::tensor_value:
        return bad("is {}; expected an object", found);
      case Place::dtype:
        return bad("has {} for its dtype; expected a string", found);
      case Place::shape_value:
        return bad("has {} for its shape; expected an array", found);
      case Place::offsets_value:
        return bad("has {} for its data_offsets; expected an array", found);
      case Place::shape:
      case Place::offsets:
        return bad("has {} in its {}; expected an integer", found, array_name());
      case Place::metadata_value:
        return make_error(ErrorCode::corrupt_data, "__metadata__ is {}; expected an object", found);
      case Place::metadata_text:
        return make_error(ErrorCode::corrupt_data,
                          "__metadata__ holds {} under '{}'; expected a string", found,
                          printable(metadata_keys_.back()));
      default:
        return make_error(ErrorCode::corrupt_data, "the header is {}; expected an object", found);
    }
  }

  std::string_view array_name() const { return place_ == Place::shape ? "shape" : "data_offsets"; }

  Status tensor_key(std::string name) {
    if (name == "__metadata__") {
      if (has_metadata_)
        return make_error(ErrorCode::corrupt_data, "__metadata__ appears twice in the header");
      has_metadata_ = true;
      place_ = Place::metadata_value;
      return {};
    }
    entries_.emplace_back();
    entries_.back().name = std::move(name);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    place_ = Place::tensor_value;
    return {};
  }

  Status field_key(std::string_view name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_dtype_;
      place_ = Place::dtype;
    } else if (name == "shape") {
      seen = &has_shape_;
      place_ = Place::shape_value;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      place_ = Place::offsets_value;
    } else {
      return bad("has the field '{}', which the format does not know", printable(name));
    }
    if (*seen) return bad("has the field '{}' twice", name);
    *seen = true;
    return {};
  }

  Status check_complete() const {
    const char* missing = !has_dtype_     ? "dtype"
                          : !has_shape_   ? "shape"
                          : !has_offsets_ ? "data_offsets"
                                          : nullptr;
    if (missing != nullptr) return bad("has no {}", missing);
    return {};
  }

  Place place_ = Place::start;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::string> metadata_keys_;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::array<std::int64_t, kRankMax> numbers_{};
  std::size_t num_numbers_ = 0;
};

/// How many tensors a well-formed header of this size may hold, to reserve memory once; never more
/// than the text has room for.
std::size_t count_tensors(std::string_view text) {
  constexpr std::string_view kField = "\"data_offsets\"";
  constexpr std::string_view kShortest = R"("":{"dtype":"U8","shape":[],"data_offsets":[0,0]})";
  std::size_t count = 0;
  for (std::size_t at = text.find(kField); at != std::string_view::npos;
       at = text.find(kField, at + kField.size()))
    ++count;
  return std::min(count, text.size() / kShortest.size());
}

/// begin <= end, and the bytes are the shape's.
Status check_size(const SafetensorsEntry& entry) {
  const auto bad = [&](std::string reason) {
    return make_error(ErrorCode::corrupt_data, "tensor '{}' {} {} {}", printable(entry.name),
                      entry.stored->name, to_string(entry.shape), reason);
  };
  if (entry.begin > entry.end)
    return bad(fmt::format("has data_offsets [{}, {}], whose end lies before the begin",
                           entry.begin, entry.end));
  std::optional<std::int64_t> bits = entry.stored->bits;
  for (int axis = 0; axis < entry.shape.rank() && bits; ++axis)
    bits = checked_mul(*bits, entry.shape[axis]);
  if (!bits || *bits % 8 != 0) return bad("has a size that is no whole number of bytes below 2^60");
  if (static_cast<std::uint64_t>(*bits / 8) != entry.bytes())
    return bad(fmt::format("needs {} bytes; its data_offsets [{}, {}] hold {}", *bits / 8,
                           entry.begin, entry.end, entry.bytes()));
  return {};
}

/// Sorts by begin and checks that the ranges tile the data area.
Status check_tiling(std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
            });
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != at)
      return make_error(
          ErrorCode::corrupt_data,
          "tensor '{}' begins at data byte {}, but the tensors before it end at {} ({})",
          printable(entry.name), entry.begin, at,
          entry.begin < at ? "they overlap" : "a hole lies between");
    at = entry.end;
    if (at > data_bytes)
      return make_error(
          ErrorCode::corrupt_data,
          "tensor '{}' ends at data byte {}, but the file has only {} data bytes (truncated?)",
          printable(entry.name), entry.end, data_bytes);
  }
  if (at != data_bytes)
    return make_error(ErrorCode::corrupt_data,
                      "{} bytes follow the last tensor, which ends at data byte {}",
                      data_bytes - at, at);
  return {};
}

template <typename Name>
std::optional<std::string_view> find_twice(std::vector<Name>& sorted) {
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return std::nullopt;
  return std::string_view(*twice);
}

Status check_names_differ(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  if (const auto twice = find_twice(names))
    return make_error(ErrorCode::corrupt_data, "tensor '{}' appears twice in the header",
                      printable(*twice));
  return {};
}

Result<std::string_view> header_text(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  if (file_bytes < 8 || bytes.size() < 8)
    return make_error(
        ErrorCode::corrupt_data,
        "a file of {} bytes is no safetensors file: the header's length alone takes 8", file_bytes);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > kSafetensorsHeaderBytesMax)
    return make_error(ErrorCode::corrupt_data, "the header claims {} bytes; the limit is {}",
                      length, kSafetensorsHeaderBytesMax);
  if (length > file_bytes - 8 || length > bytes.size() - 8)
    return make_error(
        ErrorCode::corrupt_data,
        "the header claims {} bytes, but the file has only {} after its length (truncated?)",
        length, file_bytes - 8);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8,
                              static_cast<std::size_t>(length));
  if (text.empty() || text.front() != '{')
    return make_error(ErrorCode::corrupt_data, "the header does not start with '{{'");
  return text;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> bytes,
                                                   std::uint64_t file_bytes) {
  KOHO_TRY_ASSIGN(const std::string_view text, header_text(bytes, file_bytes));
  HeaderEvents events(count_tensors(text));
  KOHO_TRY(json::parse_events(
               text, {.depth_max = kHeaderDepthMax, .string_bytes_max = kStringBytesMax}, events)
               .with_context("the header"));
  if (const auto twice = find_twice(events.metadata_keys()))
    return make_error(ErrorCode::corrupt_data, "__metadata__ has the key '{}' twice",
                      printable(*twice));
  SafetensorsHeader header;
  header.entries = std::move(events.entries());
  header.data_offset = 8 + text.size();
  for (const SafetensorsEntry& entry : header.entries) KOHO_TRY(check_size(entry));
  KOHO_TRY(check_names_differ(header.entries));
  KOHO_TRY(check_tiling(header.entries, file_bytes - header.data_offset));
  return header;
}

}  // namespace koho
