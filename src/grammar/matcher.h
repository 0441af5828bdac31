// SPDX-License-Identifier: Apache-2.0
// The seam between a constraint and who obeys it: which tokens may come next. Grammars of real
// requests come from grammar_compiler.h; tests make their own. Knows nothing of stop tokens,
// thinking or samplers: that is the engine's (engine/token_mask.h).
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

/// Follows one output. Threads: one at a time. After any error but accept's invalid_argument it is
/// of no use any more.
class Matcher {
 public:
  virtual ~Matcher() = default;

  /// Takes the next token. Errors: invalid_argument: it is not allowed, nothing has changed;
  /// resource_exhausted: one step took too long or too much memory; internal.
  virtual Status accept(std::int32_t token) = 0;
  /// Undoes the last `tokens` accepted ones. Requires: that many were accepted.
  virtual Status rollback(std::int32_t tokens) = 0;
  /// Sets the bits of the tokens that accept() would take next and clears all others. Errors: as
  /// accept's.
  virtual Status fill_mask(std::span<std::uint32_t> mask) = 0;
  /// Whether the output may end here.
  virtual bool can_end() const = 0;
};

/// A constraint that is ready for use. Threads: any.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;

  /// A matcher at the beginning; the grammar must outlive it. Errors: as Matcher::accept's.
  virtual Result<std::unique_ptr<Matcher>> start() const = 0;
  /// Memory, about.
  virtual std::size_t bytes() const = 0;
};

}  // namespace koho
