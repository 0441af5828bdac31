// SPDX-License-Identifier: Apache-2.0
// Whether a grammar allows a whole text.
#pragma once

#include <string_view>

#include "grammar/matcher.h"
#include "grammar_walk.h"

namespace koho::testing {

inline bool accepts(const CompiledGrammar& grammar, std::string_view text) {
  const Result<std::unique_ptr<Matcher>> matcher = grammar.start();
  if (!matcher.ok()) return false;
  const Result<std::vector<std::int32_t>> ids = tiny_tokenizer().encode(text);
  if (!ids.ok()) return false;
  for (const std::int32_t id : *ids)
    if (!(*matcher)->accept(id).ok()) return false;
  return (*matcher)->can_end();
}

}  // namespace koho::testing
