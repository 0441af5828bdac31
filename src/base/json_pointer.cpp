// SPDX-License-Identifier: Apache-2.0
#include "base/json_pointer.h"

#include <cstdint>

#include "base/text.h"

namespace koho {
namespace {

/// The character at the front of `text`, which it takes off; nullopt: a wrong escape.
std::optional<char> take_character(std::string_view& text) {
  const char c = text.front();
  text.remove_prefix(1);
  if (c != '%') return c;
  const std::optional<std::uint32_t> code = parse_integer<std::uint32_t>(text.substr(0, 2), 16);
  if (text.size() < 2 || !code) return std::nullopt;
  text.remove_prefix(2);
  return static_cast<char>(*code);
}

}  // namespace

std::optional<std::vector<std::string>> pointer_steps(std::string_view reference) {
  if (!reference.starts_with('#')) return std::nullopt;
  reference.remove_prefix(1);
  std::vector<std::string> steps;
  bool escaped = false;
  while (!reference.empty()) {
    const std::optional<char> c = take_character(reference);
    if (!c || (escaped && *c != '0' && *c != '1') || (steps.empty() && *c != '/'))
      return std::nullopt;
    if (escaped) {
      steps.back() += *c == '0' ? '~' : '/';
    } else if (*c == '/') {
      steps.emplace_back();
    } else if (*c != '~') {
      steps.back() += *c;
    }
    escaped = !escaped && *c == '~';
  }
  if (escaped) return std::nullopt;
  return steps;
}

}  // namespace koho
