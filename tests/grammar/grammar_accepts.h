// SPDX-License-Identifier: Apache-2.0
// Whether a grammar allows a whole text, or its beginning.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "grammar/matcher.h"
#include "grammar_walk.h"

namespace koho::testing {

/// The matcher behind `text`; null: no text may begin so.
inline std::unique_ptr<Matcher> matcher_behind(const CompiledGrammar& grammar,
                                               std::string_view text) {
  Result<std::unique_ptr<Matcher>> matcher = grammar.start();
  if (!matcher.ok()) return nullptr;
  const Result<std::vector<std::int32_t>> ids = tiny_tokenizer().encode(text);
  if (!ids.ok()) return nullptr;
  for (const std::int32_t id : *ids)
    if (!(*matcher)->accept(id).ok()) return nullptr;
  return std::move(*matcher);
}

inline bool accepts(const CompiledGrammar& grammar, std::string_view text) {
  const std::unique_ptr<Matcher> matcher = matcher_behind(grammar, text);
  return matcher != nullptr && matcher->can_end();
}

}  // namespace koho::testing
