// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <array>

namespace koho {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<DTypeInfo, 7> kDTypes{{
    {DType::f32, "F32", 4},
    {DType::bf16, "BF16", 2},
    {DType::f16, "F16", 2},
    {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::i32, "I32", 4},
    {DType::i64, "I64", 8},
    {DType::u8, "U8", 1},
}};

}  // namespace

std::int64_t dtype_bytes(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].bytes;
}

std::string_view dtype_name(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kDTypes)
    if (info.name == name) return info.dtype;
  return std::nullopt;
}

}  // namespace koho
