// SPDX-License-Identifier: Apache-2.0
// Escapes and digits. Nothing here allocates beyond the string it appends to.
#include "base/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace koho {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(byte));
        } else {
          out += c;
        }
    }
  }
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

void append_json_integer(std::string& out, std::int64_t value) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.begin(), digits.end(), value);
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

void append_json_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_json_value(std::string& out, const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::null:
      out += "null";
      return;
    case json::Kind::boolean:
      out += *value.boolean() ? "true" : "false";
      return;
    case json::Kind::integer:
      append_json_integer(out, *value.integer());
      return;
    case json::Kind::real:
      out += fmt::format("{}", *value.number());
      return;
    case json::Kind::string:
      append_json_string(out, *value.string());
      return;
    case json::Kind::array: {
      char before = '[';
      for (const json::Value& item : *value.array()) {
        out += before;
        append_json_value(out, item);
        before = ',';
      }
      out += before == '[' ? "[]" : "]";
      return;
    }
    case json::Kind::object: {
      char before = '{';
      for (const json::Member& member : *value.object()) {
        out += before;
        append_json_string(out, member.name);
        out += ':';
        append_json_value(out, member.value);
        before = ',';
      }
      out += before == '{' ? "{}" : "}";
      return;
    }
  }
}

}  // namespace koho
