// SPDX-License-Identifier: Apache-2.0
// The exact value of a number's text, which a double may not hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace koho::chat {

/// 0.digits * 10^exponent; no digits: zero.
struct Decimal {
  bool negative = false;
  std::string digits{};  // without zeros at either end
  std::int64_t exponent = 0;

  bool is_integer() const { return exponent >= static_cast<std::int64_t>(digits.size()); }
  bool operator==(const Decimal&) const = default;
};

/// Of a JSON number. An exponent beyond 10^15 is taken for that.
Decimal decimal_of(std::string_view number);

}  // namespace koho::chat
