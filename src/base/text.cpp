// SPDX-License-Identifier: Apache-2.0
// std::from_chars, with whole texts only.
#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace koho {

template <typename Integer>
std::optional<Integer> parse_integer(std::string_view text, int base) {
  Integer value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

template std::optional<std::int32_t> parse_integer(std::string_view, int);
template std::optional<std::int64_t> parse_integer(std::string_view, int);
template std::optional<std::uint32_t> parse_integer(std::string_view, int);
template std::optional<std::uint64_t> parse_integer(std::string_view, int);

std::string_view trimmed(std::string_view text, std::string_view blanks) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return lower;
}

}  // namespace koho
