// SPDX-License-Identifier: Apache-2.0
// The safetensors header of arbitrary bytes, compared with a second implementation of the format's
// rules: both accept the same headers and read the same tensors. Memory stays within 4 times the
// header and a constant. Input: two bytes for the size of the data area, then the header's JSON;
// or, with the top bit of the second byte set, the file's bytes as they are.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/safetensors.h"

// Only a sanitizer counts allocations; without one the bound on memory is not checked.
extern "C" __attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(
    void (*malloc_hook)(const volatile void*, std::size_t),
    void (*free_hook)(const volatile void*));
extern "C" __attribute__((weak)) std::size_t __sanitizer_get_allocated_size(const volatile void*);

namespace koho {
namespace {

std::int64_t allocated = 0;
std::int64_t allocated_max = 0;

void on_malloc(const volatile void*, std::size_t size) {
  allocated += static_cast<std::int64_t>(size);
  allocated_max = std::max(allocated_max, allocated);
}
void on_free(const volatile void* pointer) {
  if (pointer != nullptr)
    allocated -=
        static_cast<std::int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(pointer)));
}

using Json = nlohmann::json;

/// The tree, or a discarded one if `text` is not JSON or an object has a key twice.
Json parse_without_duplicates(std::string_view text) {
  std::vector<std::set<std::string>> open;
  bool duplicates = false;
  const auto callback = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      duplicates = true;
    return true;
  };
  Json tree = Json::parse(text, callback, false);
  return duplicates ? Json(Json::value_t::discarded) : tree;
}

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

bool is_index(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX) &&
         value.get<std::int64_t>() >= 0;
}

/// The second implementation: true and the tensors if the header is valid.
bool is_good(std::string_view text, std::uint64_t data_bytes, std::vector<Tensor>& tensors) {
  static const std::map<std::string, int> kBits{
      {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
      {"I32", 32},    {"U32", 32}, {"F32", 32}, {"F64", 64},    {"I64", 64},
      {"U64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  if (text.empty() || text[0] != '{' || text.find('\0') != std::string_view::npos) return false;
  const Json tree = parse_without_duplicates(text);
  if (!tree.is_object()) return false;
  for (const auto& [name, value] : tree.items()) {
    if (!value.is_object()) return false;
    if (name == "__metadata__") {
      for (const auto& [key, content] : value.items())
        if (!content.is_string()) return false;
      continue;
    }
    if (value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets"))
      return false;
    const Json& dtype = value["dtype"];
    const Json& shape = value["shape"];
    const Json& offsets = value["data_offsets"];
    if (!dtype.is_string() || !kBits.contains(dtype.get<std::string>()) || !shape.is_array() ||
        !offsets.is_array() || offsets.size() != 2)
      return false;
    if (!is_index(offsets[0]) || !is_index(offsets[1]) || shape.size() > 4) return false;
    Tensor tensor{name,
                  dtype.get<std::string>(),
                  {},
                  offsets[0].get<std::int64_t>(),
                  offsets[1].get<std::int64_t>()};
    __int128 bits = kBits.at(tensor.dtype);
    for (const Json& size : shape) {
      if (!is_index(size)) return false;
      tensor.shape.push_back(size.get<std::int64_t>());
      bits *= tensor.shape.back();
      if (bits > INT64_MAX) return false;
    }
    if (bits % 8 != 0 || static_cast<__int128>(tensor.end) - tensor.begin != bits / 8) return false;
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.begin != at) return false;
    at = tensor.end;
  }
  return static_cast<std::uint64_t>(at) == data_bytes;
}

void check_same(const SafetensorsHeader& header, const std::vector<Tensor>& tensors) {
  KOHO_CHECK_EQ(header.entries.size(), tensors.size());
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : tensors) by_name[tensor.name] = &tensor;
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    KOHO_CHECK(by_name.contains(entry.name));
    const Tensor& tensor = *by_name[entry.name];
    KOHO_CHECK_EQ(std::string(entry.stored->name), tensor.dtype);
    KOHO_CHECK_EQ(entry.begin, static_cast<std::uint64_t>(tensor.begin));
    KOHO_CHECK_EQ(entry.end, static_cast<std::uint64_t>(tensor.end));
    KOHO_CHECK_EQ(static_cast<std::size_t>(entry.shape.rank()), tensor.shape.size());
    for (int axis = 0; axis < entry.shape.rank(); ++axis)
      KOHO_CHECK_EQ(entry.shape[axis], tensor.shape[static_cast<std::size_t>(axis)]);
    KOHO_CHECK_EQ(entry.begin, at);
    at = entry.end;
  }
}

void run(std::string_view file, std::uint64_t file_bytes) {
  allocated = allocated_max = 0;
  const Result<SafetensorsHeader> header =
      parse_safetensors_header(std::as_bytes(std::span(file)), file_bytes);
  KOHO_CHECK_LE(allocated_max, 4 * static_cast<std::int64_t>(file.size()) + 65'536);
  std::vector<Tensor> tensors;
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8 && i < file.size(); ++i)
    length |= std::uint64_t{static_cast<std::uint8_t>(file[i])} << (8 * i);
  const bool fits = file.size() >= 8 && length <= file.size() - 8;
  const bool good = fits && is_good(file.substr(8, length), file_bytes - 8 - length, tensors);
  if (header.ok()) {
    KOHO_CHECK(good);
    KOHO_CHECK_EQ(header->data_offset, 8 + length);
    check_same(*header, tensors);
  } else {
    KOHO_CHECK(!header.error().message.empty());
    // A number of more than 512 characters is refused though it could be written shorter.
    if (good) KOHO_CHECK(header.error().reason == ErrorReason::too_long);
  }
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (__sanitizer_install_malloc_and_free_hooks != nullptr)
    __sanitizer_install_malloc_and_free_hooks(koho::on_malloc, koho::on_free);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[0] | (static_cast<std::uint64_t>(data[1] & 0x7FU) << 8U);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  if ((data[1] & 0x80U) != 0) {
    koho::run(rest, rest.size());
    return 0;
  }
  std::string file;
  for (std::size_t i = 0; i < 8; ++i)
    file.push_back(static_cast<char>((rest.size() >> (8 * i)) & 0xFFU));
  file += rest;
  koho::run(file, file.size() + data_bytes);
  return 0;
}
