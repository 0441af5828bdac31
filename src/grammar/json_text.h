// SPDX-License-Identifier: Apache-2.0
// Writes JSON text: strings, and the values of base/json.h.
#pragma once

#include <string>
#include <string_view>

#include <fmt/core.h>

#include "base/json.h"

namespace koho {

/// Appends `text` as a JSON string. Requires: well-formed UTF-8.
inline void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

inline std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

/// Appends `value`. Recurses; the parser has bounded the depth.
void append_json_value(std::string& out, const json::Value& value);

}  // namespace koho
