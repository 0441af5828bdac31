// SPDX-License-Identifier: Apache-2.0
// Text and errors in memory that processes share: fixed room, and a length that a reader checks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace koho {

template <std::size_t kBytes>
struct FlatText {
  std::uint32_t size = 0;
  std::array<char, kBytes> bytes{};

  /// False if the text is longer than the room, and is cut.
  bool set(std::string_view text) {
    size = static_cast<std::uint32_t>(std::min(text.size(), kBytes));
    std::copy_n(text.begin(), size, bytes.begin());
    return text.size() <= kBytes;
  }
  std::string_view view() const { return {bytes.data(), std::min<std::size_t>(size, kBytes)}; }
};

struct FlatError {
  std::uint32_t code = static_cast<std::uint32_t>(ErrorCode::internal);
  std::uint32_t reason = 0;
  FlatText<64> field;
  FlatText<1536> message;

  void set(const Error& error) {
    code = static_cast<std::uint32_t>(error.code);
    reason = static_cast<std::uint32_t>(error.reason);
    field.set(error.field);
    message.set(error.message);
  }
  /// Numbers that are none of ours become `internal` and no reason.
  Error error() const {
    const bool known = code <= static_cast<std::uint32_t>(ErrorCode::internal);
    const bool reasoned = reason <= static_cast<std::uint32_t>(ErrorReason::unsatisfiable_schema);
    return {known ? static_cast<ErrorCode>(code) : ErrorCode::internal, std::string(message.view()),
            reasoned ? static_cast<ErrorReason>(reason) : ErrorReason::none,
            std::string(field.view())};
  }
};

}  // namespace koho
