// SPDX-License-Identifier: Apache-2.0
// What the tests of grammars share: the tokenizer of models/tiny, limits that a loaded machine does
// not reach, and random walks through a grammar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "grammar/matcher.h"
#include "tokenizer/tokenizer.h"

namespace koho::testing {

const Tokenizer& tiny_tokenizer();

/// Limits of time that a loaded machine does not reach.
GrammarLimits patient_limits();

bool is_set(const std::vector<std::uint32_t>& mask, std::int32_t token);

/// The processor time of a mask after `text`, us: the least of 20.
double mask_us(const CompiledGrammar& grammar, std::string_view text);

struct Walk {
  std::string text;
  bool ended = false;  // the grammar allows the text to end
};

/// Samples up to `tokens_max` tokens, each uniformly from the allowed ones. Prefers tokens that
/// close something once the walk is long.
Walk random_walk(const CompiledGrammar& grammar, std::uint64_t seed, int tokens_max);

/// Walks at random and expects at every step that accept() allows exactly the tokens of the mask.
/// Tries every control token, all allowed tokens where these are few, a sample of all others, and
/// all tokens that contain one of `bytes`.
void expect_accept_agrees_with_mask(const CompiledGrammar& grammar,
                                    std::uint64_t seed,
                                    std::string_view bytes = {});

}  // namespace koho::testing
