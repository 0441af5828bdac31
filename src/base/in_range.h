// SPDX-License-Identifier: Apache-2.0
// Checks a number that a user set (a limit, an option, a field) and words the error, one way
// everywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace koho {

/// Errors: invalid_argument naming `name`, the range and what was found.
inline Status in_range(std::string_view name,
                       std::int64_t value,
                       std::int64_t low,
                       std::int64_t high) {
  if (value >= low && value <= high) return {};
  return make_error(ErrorCode::invalid_argument, "{} must be in {}..{}, found {}", name, low, high,
                    value);
}

}  // namespace koho
