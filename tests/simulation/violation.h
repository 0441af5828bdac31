// SPDX-License-Identifier: Apache-2.0
// A broken rule, with the number under which docs/simulation.md lists it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace koho::simulation {

class Violation : public std::runtime_error {
 public:
  Violation(int rule, const std::string& text);
};

/// Throws a Violation of the rule, told by `text`, unless it holds.
template <typename... Args>
void require(bool holds, int rule, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw Violation(rule, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace koho::simulation
