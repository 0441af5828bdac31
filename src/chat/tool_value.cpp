// SPDX-License-Identifier: Apache-2.0
#include "chat/tool_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/json_writer.h"
#include "base/text.h"
#include "chat/python_text.h"

namespace koho::chat {
namespace {

// The value becomes a member of an arguments object, which must parse again.
constexpr std::size_t kValueDepthMax = kJsonDepthMax - 1;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Appends the code point `code` in UTF-8; false if it is not a character.
bool append_utf8(std::string& out, std::uint32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  if (code < 0x80) {
    out += static_cast<char>(code);
    return true;
  }
  const int num_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[num_more] | (code >> static_cast<unsigned>(6 * num_more)));
  for (int i = num_more - 1; i >= 0; --i)
    out += static_cast<char>(0x80U | ((code >> static_cast<unsigned>(6 * i)) & 0x3FU));
  return true;
}

/// Parses Python literals by recursive descent, at most kValueDepthMax levels deep.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : rest_(text) {}

  std::optional<Json> read_all() {
    std::optional<Json> value = read(0);
    skip_blanks();
    return rest_.empty() ? std::move(value) : std::nullopt;
  }

 private:
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n\f"), rest_.size()));
  }
  bool take(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }

  std::optional<Json> read(std::size_t depth) {
    skip_blanks();
    if (rest_.empty()) return std::nullopt;
    const char first = rest_.front();
    const bool container = first == '[' || first == '(' || first == '{';
    if (container && depth >= kValueDepthMax) return std::nullopt;
    if (first == '[') return read_sequence(depth, ']');
    if (first == '(') return read_sequence(depth, ')');
    if (first == '{') return read_dict(depth);
    if (first == '\'' || first == '"') return read_string();
    if (is_digit(first) || first == '-' || first == '+' || first == '.') return read_number();
    return read_name();
  }

  std::optional<Json> read_name() {
    Json value;
    if (take("None")) return value;
    value.kind = Json::Kind::boolean;
    if (take("False")) return value;
    if (!take("True")) return std::nullopt;
    value.boolean = true;
    return value;
  }

  std::optional<Json> read_number() {
    const std::size_t length = std::min(rest_.find_first_not_of("+-.0123456789eE"), rest_.size());
    std::string_view digits = rest_.substr(0, length);
    rest_.remove_prefix(length);
    const bool negative = digits.front() == '-';
    if (negative || digits.front() == '+') digits.remove_prefix(1);
    if (digits.empty() || !(is_digit(digits.front()) || digits.front() == '.')) return std::nullopt;
    Json value;
    value.kind = Json::Kind::number;
    if (std::all_of(digits.begin(), digits.end(), is_digit)) {
      if (digits.size() > kJsonDigitsMax || (digits.size() > 1 && digits.front() == '0'))
        return std::nullopt;
      if (negative && digits != "0") value.text = "-";
      value.text += digits;
      return value;
    }
    double number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
    value.text = python_float(negative ? -number : number);
    return value;
  }

  std::optional<Json> read_string() {
    const char quote = rest_.front();
    if (rest_.substr(0, 3) == std::string(3, quote)) return std::nullopt;  // '''...'''
    rest_.remove_prefix(1);
    Json value = Json::string("");
    while (!rest_.empty() && rest_.front() != quote) {
      if (rest_.front() == '\n') return std::nullopt;
      if (rest_.front() != '\\') {
        value.text += rest_.front();
        rest_.remove_prefix(1);
      } else if (!read_escape(value.text)) {
        return std::nullopt;
      }
    }
    if (rest_.empty()) return std::nullopt;
    rest_.remove_prefix(1);
    return value;
  }

  bool read_escape(std::string& out) {
    if (rest_.size() < 2) return false;
    const char kind = rest_[1];
    rest_.remove_prefix(2);
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t i = kLetters.find(kind); i != std::string_view::npos) {
      out += kMeanings[i];
      return true;
    }
    if (kind == '\n') return true;  // a line continuation
    if (kind == 'x') return read_code(out, 2, 16);
    if (kind == 'u') return read_code(out, 4, 16);
    if (kind == 'U') return read_code(out, 8, 16);
    if (kind == 'N' || is_digit(kind))
      return false;  // \N{name} and octal escapes are not supported
    out += '\\';     // Python keeps an unknown escape
    out += kind;
    return true;
  }

  bool read_code(std::string& out, std::size_t length, int base) {
    if (rest_.size() < length) return false;
    const auto code = parse_integer<std::uint32_t>(rest_.substr(0, length), base);
    if (!code) return false;
    rest_.remove_prefix(length);
    return append_utf8(out, *code);
  }

  /// [a, b], (a, b), (a,). (a) is not a tuple but a.
  std::optional<Json> read_sequence(std::size_t depth, char close) {
    rest_.remove_prefix(1);
    Json list;
    list.kind = Json::Kind::array;
    bool comma = false;
    for (skip_blanks(); !rest_.starts_with(close); skip_blanks()) {
      if (!list.items.empty() && !comma) return std::nullopt;
      std::optional<Json> item = read(depth + 1);
      if (!item) return std::nullopt;
      list.items.push_back(std::move(*item));
      skip_blanks();
      comma = take(",");
    }
    rest_.remove_prefix(1);
    if (close == ')' && list.items.size() == 1 && !comma) {
      Json item = std::move(list.items.front());
      return item;
    }
    return list;
  }

  std::optional<Json> read_dict(std::size_t depth) {
    rest_.remove_prefix(1);
    Json dict = Json::object();
    bool comma = false;
    for (skip_blanks(); !rest_.starts_with('}'); skip_blanks()) {
      if (!dict.items.empty() && !comma) return std::nullopt;
      const std::optional<Json> key = read(depth + 1);
      skip_blanks();
      if (!key || !key->is_string() || !take(":")) return std::nullopt;
      std::optional<Json> item = read(depth + 1);
      if (!item || dict.items.size() >= kJsonKeysMax) return std::nullopt;
      dict.set(key->text, std::move(*item));
      skip_blanks();
      comma = take(",");
    }
    rest_.remove_prefix(1);
    return dict;
  }

  std::string_view rest_;
};

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

/// The number without a zero fraction: 3.0 as 3, where only an integer is declared.
std::string integer_text(const Json& number) {
  if (number.is_integer() || number.text.find_first_of("eE") != std::string::npos)
    return number.text;
  return number.text.substr(0, number.text.find('.'));
}

}  // namespace

std::string value_to_json(std::string_view text,
                          TypeSet types,
                          const std::function<bool(const Json&)>& allows) {
  const std::string_view stripped = python_strip(text);
  std::optional<Json> value;
  if (Result<Json> parsed = parse_json(
          stripped,
          {.depth_max = kValueDepthMax, .exact_numbers = true, .last_of_duplicates = true});
      parsed.ok()) {
    value = std::move(parsed).value();
  } else if (types.is_any() || !types.has(TypeSet::string)) {
    value = parse_python_literal(stripped);
  }
  if (!value || (value->is_string() && types.has(TypeSet::string))) return quoted(text);
  const TypeSet found = type_of(*value);
  if ((found & types).empty()) {
    const bool string_instead =
        types.has(TypeSet::string) || (found == TypeSet::fraction && types.has(TypeSet::integer));
    return string_instead ? quoted(text) : dump_json(*value);
  }
  if (types.has(TypeSet::string) && allows && !allows(*value) &&
      allows(Json::string(std::string(text))))
    return quoted(text);
  const bool integer_only = found == TypeSet::integer && !types.has(TypeSet::fraction);
  return integer_only ? integer_text(*value) : dump_json(*value);
}

std::optional<Json> parse_python_literal(std::string_view text) {
  return LiteralReader(text).read_all();
}

}  // namespace koho::chat
