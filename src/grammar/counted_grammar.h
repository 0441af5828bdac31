// SPDX-License-Identifier: Apache-2.0
// Adds length bounds of strings to a grammar that leaves string lengths open: fill_mask() takes the
// grammar's token mask and clears the tokens that would break a bound. Counting characters here
// costs the same for any bound; inside the grammar each character would be a state of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/string_lengths.h"
#include "tokenizer/tokenizer.h"

namespace koho {

/// Masks of the vocabulary's tokens by how many characters they add to a string. One object serves
/// all grammars. Immutable after construction. Threads: any.
class CountedTokens {
 public:
  /// `strings`: characters count up to a quotation mark, which ends a JSON string. Otherwise all
  /// characters of a token count. The tokenizer must outlive this object.
  CountedTokens(const Tokenizer& tokenizer, std::int64_t vocabulary, bool strings);

  /// Clears in `mask` the tokens that put an escape (a backslash) into the string.
  void keep_plain(std::span<std::uint32_t> mask) const;
  /// The same, and clears the tokens that add more than `left` characters to the string.
  void keep_within(std::span<std::uint32_t> mask, std::int32_t left) const;
  /// Clears in `mask` the tokens that end the string before it has `missing` more characters.
  void keep_open(std::span<std::uint32_t> mask, std::int32_t missing) const;

  std::string_view bytes(std::int32_t token) const { return tokenizer_->token_bytes(token); }
  /// A token whose first byte is a quotation mark and its only one: it opens a string.
  struct Opening {
    std::int32_t token = 0;
    std::int32_t characters = 0;  // after the quotation mark
    bool escapes = false;         // a backslash is among them
  };
  std::span<const Opening> openings() const { return openings_; }
  /// All other tokens that contain a quotation mark, and of these the tokens with two or more.
  std::span<const std::int32_t> quoted() const { return quoted_; }
  std::span<const std::int32_t> twice_quoted() const { return twice_quoted_; }

 private:
  using Mask = std::vector<std::uint32_t>;

  const Tokenizer* tokenizer_;
  Mask plain_;                // tokens without an escape before the string's end
  std::vector<Mask> within_;  // [n] tokens of plain_ with at most n characters
  std::vector<Mask> open_;    // [n] tokens that do not end the string before n characters
  std::vector<Opening> openings_;
  std::vector<std::int32_t> quoted_;
  std::vector<std::int32_t> twice_quoted_;
};

/// `grammar` with the bounds of `plan`. Requires: `grammar` leaves these lengths open.
std::shared_ptr<const CompiledGrammar> count_lengths(std::shared_ptr<const CompiledGrammar> grammar,
                                                     LengthPlan plan,
                                                     std::shared_ptr<const CountedTokens> tokens);

}  // namespace koho
