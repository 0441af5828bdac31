// SPDX-License-Identifier: Apache-2.0
// Copies what is printable UTF-8 and escapes every other byte.
#include "base/printable.h"

#include <cstdint>

#include <fmt/core.h>

namespace koho {
namespace {

/// Bytes of the well-formed UTF-8 character at the start of `text`, or 0. Not empty.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) > 0x9F;
  const bool beyond = first == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= bytes_max) return out + "…";
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<std::uint8_t>(text[0]);
    // C0 controls, DEL and the C1 controls (U+0080 to U+009F) steer terminals.
    const bool control =
        first < 0x20 || first == 0x7F ||
        (length == 2 && first == 0xC2 && static_cast<std::uint8_t>(text[1]) < 0xA0);
    if (length == 0 || control) {
      out += fmt::format("\\x{:02x}", first);
      text.remove_prefix(1);
    } else {
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace koho
