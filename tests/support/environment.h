// SPDX-License-Identifier: Apache-2.0
// Numbers that tests take from the environment. What is no number ends the test: with a count that
// it understood as 0 it would have passed without a check.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/text.h"

namespace koho::testing {

/// The variable `name`, at least `least`; `otherwise` where it is not set.
inline std::uint64_t number_from_environment(const char* name,
                                             std::uint64_t otherwise,
                                             std::uint64_t least = 0) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const std::optional<std::uint64_t> number = parse_integer<std::uint64_t>(text);
  if (number && *number >= least) return *number;
  std::fprintf(stderr, "%s must be a number of at least %llu, found \"%s\"\n", name,
               static_cast<unsigned long long>(least), text);
  std::exit(2);
}

}  // namespace koho::testing
