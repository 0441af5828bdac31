// SPDX-License-Identifier: Apache-2.0
// The interface between grammars and the engine: a Matcher says which tokens may come next.
// grammar_compiler.h makes the grammars of requests, tests make their own. Stop tokens, reasoning
// and sampling belong to the engine (engine/token_mask.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"

namespace koho {

/// Words of a mask over `vocabulary` tokens: token t is bit t % 32 of word t / 32.
constexpr std::size_t mask_words(std::int64_t vocabulary) {
  return static_cast<std::size_t>((vocabulary + 31) / 32);
}

/// Follows one sequence through a grammar. After any error except accept()'s invalid_argument it
/// must not be used any more. Threads: one at a time.
class Matcher {
 public:
  virtual ~Matcher() = default;

  /// Moves on by `token`. Errors: invalid_argument: the grammar does not allow it, and the state is
  /// unchanged; resource_exhausted with grammar_too_complex: the step passed its limit of time or
  /// memory; internal.
  virtual Status accept(std::int32_t token) = 0;
  /// Undoes the last `tokens` accepted tokens. Requires: that many were accepted.
  virtual Status rollback(std::int32_t tokens) = 0;
  /// Sets the bits of the tokens that accept() would allow next and clears all others. Errors: as
  /// accept().
  virtual Status fill_mask(std::span<std::uint32_t> mask) = 0;
  /// Whether the sequence may end here.
  virtual bool can_end() const = 0;
};

/// A compiled constraint. Threads: any.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;

  /// A matcher at the start of a sequence. Requires: the grammar outlives it. Errors: as
  /// Matcher::accept().
  virtual Result<std::unique_ptr<Matcher>> start() const = 0;
  /// Its approximate size in memory.
  virtual std::size_t bytes() const = 0;
};

}  // namespace koho
