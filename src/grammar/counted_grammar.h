// SPDX-License-Identifier: Apache-2.0
// A grammar whose strings may have any length, and their bounds, put together: a mask is the
// grammar's without the tokens that break a bound.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/string_lengths.h"
#include "tokenizer/tokenizer.h"

namespace koho {

/// What lengths need to know of a vocabulary, made once for all grammars.
class CountedTokens {
 public:
  /// `strings`: for strings in JSON, which a quotation mark ends; else for texts without an end.
  CountedTokens(const Tokenizer& tokenizer, std::int64_t vocabulary, bool strings);

  /// Takes from `mask` the tokens with an escape within the string, …
  void keep_plain(std::span<std::uint32_t> mask) const;
  /// … and those that have more characters within it than `left`, too.
  void keep_within(std::span<std::uint32_t> mask, std::int32_t left) const;
  /// Takes from `mask` the tokens that end the string before `missing` more characters.
  void keep_open(std::span<std::uint32_t> mask, std::int32_t missing) const;

  std::string_view bytes(std::int32_t token) const { return tokenizer_->token_bytes(token); }
  /// A token with one quotation mark, its first byte.
  struct Opening {
    std::int32_t token = 0;
    std::int32_t characters = 0;  // behind the mark
    bool escapes = false;         // one of them is a backslash
  };
  std::span<const Opening> openings() const { return openings_; }
  /// All other tokens with quotation marks, and those of them with two at least.
  std::span<const std::int32_t> quoted() const { return quoted_; }
  std::span<const std::int32_t> twice_quoted() const { return twice_quoted_; }

 private:
  using Mask = std::vector<std::uint32_t>;

  const Tokenizer* tokenizer_;
  Mask plain_;                // tokens without an escape before the string's end
  std::vector<Mask> within_;  // [n] of these, those of n characters at most
  std::vector<Mask> open_;    // [n] tokens that do not end the string before n characters
  std::vector<Opening> openings_;
  std::vector<std::int32_t> quoted_;
  std::vector<std::int32_t> twice_quoted_;
};

/// `grammar` allows what `plan` leaves open.
std::shared_ptr<const CompiledGrammar> count_lengths(std::shared_ptr<const CompiledGrammar> grammar,
                                                     LengthPlan plan,
                                                     std::shared_ptr<const CountedTokens> tokens);

}  // namespace koho
