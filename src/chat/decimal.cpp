// SPDX-License-Identifier: Apache-2.0
#include "chat/decimal.h"

#include <algorithm>

namespace koho::chat {

Decimal decimal_of(std::string_view number) {
  constexpr std::int64_t kExponentMax = 1'000'000'000'000'000;
  Decimal decimal;
  decimal.negative = number.starts_with('-');
  if (decimal.negative) number.remove_prefix(1);
  const std::size_t end = std::min(number.find_first_of("eE"), number.size());
  const std::string_view written = number.substr(0, end);
  bool whole = true;
  for (const char c : written) {
    if (c == '.') {
      whole = false;
      continue;
    }
    if (whole) ++decimal.exponent;
    decimal.digits += c;
  }
  const std::size_t first = std::min(decimal.digits.find_first_not_of('0'), decimal.digits.size());
  decimal.digits.erase(0, first);
  decimal.exponent -= static_cast<std::int64_t>(first);
  decimal.digits.erase(decimal.digits.find_last_not_of('0') + 1);
  if (decimal.digits.empty()) {
    return {};
  }
  std::string_view power = number.substr(std::min(end + 1, number.size()));
  const bool below = power.starts_with('-');
  if (below || power.starts_with('+')) power.remove_prefix(1);
  std::int64_t value = 0;
  for (const char c : power) value = std::min(10 * value + (c - '0'), kExponentMax);
  decimal.exponent += below ? -value : value;
  return decimal;
}

}  // namespace koho::chat
