// SPDX-License-Identifier: Apache-2.0
#include "grammar/text_limits.h"

#include <algorithm>

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

}  // namespace koho
