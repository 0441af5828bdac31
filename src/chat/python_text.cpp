// SPDX-License-Identifier: Apache-2.0
// Python's text functions on UTF-8. repr() asks PCRE2 for the Unicode category of a character, to
// know whether it is printable. PCRE2 10.42 and Python 3.11 both have Unicode 14.
#include "chat/python_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/core.h>

#include "base/check.h"
#include "chat/json.h"
#include "tokenizer/utf8.h"

namespace koho::chat {
namespace {

/// str.isspace of one character.
constexpr bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// The character that `text` starts with, and its length in bytes. A byte that starts no whole
/// character counts as U+FFFD. Requires: `text` is not empty.
struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
};
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (text.size() < bytes) return {0xFFFD, 1};
  char32_t code = lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (begins_character(text[i])) return {0xFFFD, 1};
    code = (code << 6U) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  return {code, bytes};
}

/// str.isprintable of non-ASCII characters.
class Printable {
 public:
  Printable() {
    int error = 0;
    PCRE2_SIZE offset = 0;
    constexpr std::string_view kNotPrintable = "\\A[\\p{C}\\p{Z}]";
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kNotPrintable.data()),
                              kNotPrintable.size(), PCRE2_UTF, &error, &offset, nullptr));
    KOHO_CHECK(code_ != nullptr);
    match_.reset(pcre2_match_data_create(1, nullptr));
    KOHO_CHECK(match_ != nullptr);
  }
  bool operator()(std::string_view character) {
    const int matched = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(character.data()),
                                    character.size(), 0, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
    return matched == PCRE2_ERROR_NOMATCH;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

void append_repr_string(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::unique_ptr<Printable> printable;  // constructed when the first character needs it
  out += quote;
  while (!text.empty()) {
    const Character c = first_character(text);
    const std::string_view bytes = text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
    const auto code = static_cast<std::uint32_t>(c.code);
    if (c.code == static_cast<unsigned char>(quote) || c.code == '\\') {
      out += '\\';
      out += bytes;
    } else if (c.code == '\n') {
      out += "\\n";
    } else if (c.code == '\r') {
      out += "\\r";
    } else if (c.code == '\t') {
      out += "\\t";
    } else if (c.code < 0x20 || c.code == 0x7F) {
      out += fmt::format("\\x{:02x}", code);
    } else if (c.code < 0x7F) {
      out += bytes;
    } else {
      if (!printable) printable = std::make_unique<Printable>();
      if ((*printable)(bytes)) {
        out += bytes;
      } else if (c.code <= 0xFF) {
        out += fmt::format("\\x{:02x}", code);
      } else if (c.code <= 0xFFFF) {
        out += fmt::format("\\u{:04x}", code);
      } else {
        out += fmt::format("\\U{:08x}", code);
      }
    }
  }
  out += quote;
}

void append_repr(std::string& out, const Json& value) {  // depth is at most kJsonDepthMax
  switch (value.kind) {
    case Json::Kind::null:
      out += "None";
      return;
    case Json::Kind::boolean:
      out += value.boolean ? "True" : "False";
      return;
    case Json::Kind::number:
      out += value.text;
      return;
    case Json::Kind::string:
      append_repr_string(out, value.text);
      return;
    case Json::Kind::array:
    case Json::Kind::token_ids:
    case Json::Kind::object:
      break;
  }
  out += value.is_object() ? '{' : '[';
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (value.is_object()) {
      append_repr_string(out, value.keys[i]);
      out += ": ";
    }
    append_repr(out, value.items[i]);
  }
  out += value.is_object() ? '}' : ']';
}

}  // namespace

std::string_view python_strip(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!is_python_space(c.code)) break;
    text.remove_prefix(c.bytes);
  }
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && !begins_character(text[last])) --last;
    const Character c = first_character(text.substr(last));
    if (!is_python_space(c.code) || last + c.bytes != text.size()) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view strip_newlines_left(std::string_view text) {
  const std::size_t first = text.find_first_not_of('\n');
  return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

std::string_view strip_newlines_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string python_float(double value) {
  KOHO_CHECK(std::isfinite(value));
  // std::to_chars gives the shortest digits as d[.ddd]e±xx. Python writes an exponent only below -4
  // and from 16 on.
  std::array<char, 32> buffer{};
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                     std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data()));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t exponent_at = text.find('e');
  std::string digits(text.substr(0, exponent_at));
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  const std::string_view exponent_text = text.substr(exponent_at + 1);
  int exponent = 0;
  std::from_chars(exponent_text.data() + 1, exponent_text.data() + exponent_text.size(), exponent);
  if (exponent_text.front() == '-') exponent = -exponent;

  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string python_str(const Json& value) {
  if (value.is_string()) return value.text;
  std::string out;
  append_repr(out, value);
  return out;
}

}  // namespace koho::chat
