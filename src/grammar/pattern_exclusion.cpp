// SPDX-License-Identifier: Apache-2.0
// Expressions for all strings but some words. How other expressions are rewritten:
// pattern_rewrite.cpp.
#include <algorithm>
#include <cctype>
#include <map>
#include <vector>

#include "grammar/pattern_rewrite.h"
#include "grammar/unicode_class.h"

namespace koho {
namespace {

bool is_plain_word(std::string_view word) {
  return !word.empty() && word.size() <= kExcludedBytesMax && std::ranges::all_of(word, [](char c) {
    return c >= ' ' && c < '\x7f' &&
           std::string_view("\"\\^$.|?*+()[]{}").find(c) == std::string_view::npos;
  });
}

/// What may follow a prefix of words that are cut behind it; `empty`: nothing may, too, unless one
/// of them ends there. Empty: no text may follow.
std::string excluded_below(const std::vector<std::string_view>& words, bool prefixes, bool empty) {
  std::map<char, std::vector<std::string_view>> next;
  bool is_word = false;
  for (const std::string_view word : words) {
    if (word.empty()) {
      is_word = true;
    } else {
      next[word.front()].push_back(word.substr(1));
    }
  }
  if (is_word && prefixes) return {};  // nothing behind it is allowed
  std::string others;
  for (const auto& [c, rest] : next) append_of_class(others, static_cast<unsigned char>(c));
  constexpr std::string_view kEscaped = R"("\\\x00-\x1f\u2028\u2029)";  // in JSON; or ends a line
  std::string out = fmt::format("([^{}{}][^{}]*", others, kEscaped, kEscaped);
  for (const auto& [c, rest] : next) {
    const std::string below = excluded_below(rest, prefixes, true);
    if (below.empty()) continue;
    out += '|';
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) out += '\\';
    out += c;
    out += below;
  }
  out += ')';
  if (!is_word && empty) out += '?';
  return out;
}

}  // namespace

std::string pattern_without(std::span<const std::string> words, bool prefixes, bool empty) {
  return excluded_below({words.begin(), words.end()}, prefixes, empty);
}

std::optional<std::string> pattern_without_lookahead(std::string_view pattern) {
  constexpr std::string_view kBegin = "^(?!";
  if (!pattern.starts_with(kBegin)) return std::nullopt;
  pattern.remove_prefix(kBegin.size());
  const std::size_t close = pattern.rfind(')');
  if (close == std::string_view::npos) return std::nullopt;
  std::string_view rest = pattern.substr(close + 1);
  std::string_view list = pattern.substr(0, close);
  if (rest.ends_with('$')) rest.remove_suffix(1);
  if (rest != ".*" && rest != ".+") return std::nullopt;
  const bool whole = list.ends_with('$');
  if (whole) list.remove_suffix(1);
  if (list.starts_with("(?:") && list.ends_with(')')) list = list.substr(3, list.size() - 4);
  std::vector<std::string> words;
  while (true) {
    const std::size_t end = std::min(list.find('|'), list.size());
    std::string_view word = list.substr(0, end);
    if (whole && word.ends_with('$')) word.remove_suffix(1);
    if (!is_plain_word(word)) return std::nullopt;
    words.emplace_back(word);
    if (end == list.size()) break;
    list.remove_prefix(end + 1);
  }
  // (?!a|b$) excludes what begins with "a", too: that is more than whole words.
  if (whole && words.size() > 1 && pattern.substr(0, close).find("$|") == std::string_view::npos &&
      !pattern.starts_with("(?:"))
    return std::nullopt;
  return "^" + pattern_without(words, !whole, rest == ".*") + "$";
}

}  // namespace koho
