// SPDX-License-Identifier: Apache-2.0
#include "app/serve_option_values.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/text.h"

namespace koho::app {

Result<std::int64_t> number_of(const std::string& text, std::int64_t least, std::int64_t most) {
  std::string_view digits = text;
  std::int64_t unit = 1;
  if (text.ends_with('k') || text.ends_with('K')) unit = 1024;
  if (text.ends_with('m') || text.ends_with('M')) unit = 1024 * 1024;
  if (unit > 1) digits.remove_suffix(1);
  const auto value = parse_integer<std::int64_t>(digits);
  if (!value || *value > most / unit || *value < least / unit || *value * unit < least)
    return make_error(ErrorCode::invalid_argument, "expected an integer in {}..{}, found '{}'",
                      least, most, text);
  return *value * unit;
}

Status set_numbers(std::vector<std::int32_t>& target,
                   const std::string& text,
                   std::int64_t least,
                   std::int64_t most) {
  target.clear();
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string word(trimmed(rest.substr(0, comma)));
    KOHO_TRY_ASSIGN(const std::int64_t number, number_of(word, least, most));
    target.push_back(static_cast<std::int32_t>(number));
    if (comma == rest.size()) return {};
    rest.remove_prefix(comma + 1);
  }
}

Status set_bytes(std::int64_t& target, const std::string& text) {
  constexpr std::string_view kUnits = "KMGT";
  std::string_view digits = text;
  if (digits.size() > 2 && digits.ends_with("iB")) digits.remove_suffix(2);
  const bool named = digits.size() != text.size();
  std::int64_t unit = 1;
  if (!digits.empty())
    if (const std::size_t at = kUnits.find(static_cast<char>(digits.back() & ~0x20));
        at != std::string_view::npos) {
      unit = std::int64_t{1} << (10 * (at + 1));
      digits.remove_suffix(1);
    }
  const auto value = parse_integer<std::int64_t>(digits);
  if (!value || (named && unit == 1) || *value < 1 || *value > (std::int64_t{1} << 50) / unit)
    return make_error(ErrorCode::invalid_argument,
                      "expected a number of bytes such as 68719476736, 64G or 64GiB, found '{}'",
                      text);
  target = *value * unit;
  return {};
}

Status set_share(double& target, const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0.0 && value <= 1.0))
    return make_error(ErrorCode::invalid_argument,
                      "expected a number above 0 and at most 1, found '{}'", text);
  target = value;
  return {};
}

Status set_boolean(bool& target, const std::string& text) {
  const bool on = text.empty() || text == "true" || text == "1" || text == "yes" || text == "on";
  const bool off = text == "false" || text == "0" || text == "no" || text == "off";
  if (!on && !off)
    return make_error(ErrorCode::invalid_argument, "expected true or false, found '{}'", text);
  target = on;
  return {};
}

Status set_negated(bool& target, const std::string& text) {
  bool off = false;
  KOHO_TRY(set_boolean(off, text));
  target = !off;
  return {};
}

Status set_text(std::string& target, const std::string& text) {
  target = text;
  return {};
}

Status add_text(std::vector<std::string>& target, const std::string& text) {
  target.push_back(text);
  return {};
}

Status set_word(std::string& target,
                const std::string& text,
                std::initializer_list<std::string_view> words) {
  if (std::ranges::find(words, text) == words.end())
    return make_error(ErrorCode::invalid_argument, "expected one of {}, found '{}'",
                      fmt::join(words, ", "), text);
  target = text;
  return {};
}

std::string shown_boolean(bool value) {
  return value ? "true" : "false";
}

}  // namespace koho::app
