// SPDX-License-Identifier: Apache-2.0
#include "grammar/text_limits.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "tokenizer/utf8.h"

namespace koho {
namespace {

/// The nesting depth of parentheses in a regular expression or a grammar.
int nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '(') {
      deepest = std::max(deepest, ++depth);
    } else if (text[i] == ')' && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

bool is_hexadecimal(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
}

/// A character of a rule's name.
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

/// Whether xgrammar, not GBNF, reads a regular expression here, by other rules than ours.
bool is_expression(std::string_view text) {
  constexpr std::string_view kName = "Regex";
  return text.starts_with(kName) && (text.size() == kName.size() || !is_name(text[kName.size()]));
}

}  // namespace

Status check_text(std::string_view name, std::string_view text, const GrammarLimits& limits) {
  if (text.empty()) return refused(kInvalidGrammar, fmt::format("{} must not be empty", name));
  if (text.size() > limits.schema.bytes_max)
    return refused(kGrammarTooComplex, fmt::format("{} has {} bytes; the limit is {}", name,
                                                   text.size(), limits.schema.bytes_max));
  if (nesting(text) > limits.schema.depth_max)
    return refused(kGrammarTooComplex,
                   fmt::format("{} nests parentheses deeper than the limit of {}", name,
                               limits.schema.depth_max));
  if (text.find('\0') != text.npos || utf8_valid_bytes(text) != text.size())
    return refused(kInvalidGrammar, fmt::format("{} must be UTF-8 without U+0000", name));
  return {};
}

Status check_grammar_escapes(std::string_view text) {
  char inside = 0;  // '"' of a string, ']' of a class, '\n' of a comment
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside == 0) {
      inside = c == '"' ? '"' : c == '[' ? ']' : c == '#' ? '\n' : '\0';
      if (is_name(c) && (i == 0 || !is_name(text[i - 1])) && is_expression(text.substr(i)))
        return refused(kInvalidGrammar,
                       "Regex(…) is not supported: write rules, or the expression as the request's "
                       "regex");
    } else if (c == inside) {
      inside = 0;
    } else if (c == '\\' && inside != '\n') {
      const std::string_view escape = text.substr(i, text.substr(i).starts_with("\\U") ? 10 : 6);
      ++i;
      const auto digits = std::find_if_not(escape.begin() + std::min<std::size_t>(2, escape.size()),
                                           escape.end(), is_hexadecimal);
      const auto count = digits - escape.begin() - 2;
      if (escape.starts_with("\\x") && count > 2)
        return refused(kInvalidGrammar,
                       fmt::format("{} is two digits and text, or one longer number: write \\u00{}",
                                   escape.substr(0, static_cast<std::size_t>(count) + 2),
                                   escape.substr(2, 2)));
      const bool whole = (escape.starts_with("\\u") || escape.starts_with("\\U")) && count >= 4 &&
                         escape.begin() + 2 + count == escape.end();
      unsigned code = 0;
      if (whole) std::from_chars(escape.data() + 2, escape.data() + escape.size(), code, 16);
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return refused(
            kInvalidGrammar,
            fmt::format("{} is {}: write \\U and the eight digits of a character", escape,
                        code > 0x10FFFF ? "above U+10FFFF" : "half of a character"));
    }
  }
  return {};
}

}  // namespace koho
