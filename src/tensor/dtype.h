// SPDX-License-Identifier: Apache-2.0
// The element types koho stores, their sizes and their names in safetensors headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace koho {

enum class DType : std::uint8_t { f32, bf16, f16, f8_e4m3, i32, i64, u8 };

/// Bytes of one element.
std::int64_t dtype_bytes(DType dtype);

/// "F32", "BF16", "F16", "F8_E4M3", "I32", "I64", "U8": as safetensors writes them.
std::string_view dtype_name(DType dtype);

/// The dtype of a safetensors name, if koho has it.
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace koho
