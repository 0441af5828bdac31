// SPDX-License-Identifier: Apache-2.0
// Compiles constraints to grammars over the model's tokens, on threads of its own, within limits of
// time and memory, and caches the grammars by the constraint's text. Whatever a client sends, a
// compilation ends within its limits and reports failure as an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.h"
#include "grammar/constraint.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"
#include "tokenizer/tokenizer.h"

namespace koho {

struct GrammarLimits {
  SchemaLimits schema;                          // of a schema, and of every other text
  std::int32_t choices_max = 1000;              // of Constraint::choices
  std::int32_t tools_max = 128;                 // of Constraint::tools whose calls follow a schema
  std::int64_t compile_us_max = 1'000'000;      // processor time of one compilation
  std::size_t compile_bytes_max = 2UL << 30U;   // sum of all its allocations
  std::size_t grammar_bytes_max = 64UL << 20U;  // of one grammar
  std::int64_t step_us_max = 50'000;            // processor time of one call of a Matcher
  std::size_t step_bytes_max = 256UL << 20U;
  std::size_t cache_bytes_max = 256UL << 20U;  // of the cached grammars
  std::size_t parts_bytes_max = 128UL << 20U;  // parts of grammars that other schemas reuse
  std::int32_t threads = 2;                    // compilations at once
  std::int32_t queue_max = 256;                // waiting compilations
  /// Longest run of white space in JSON: without a bound a model may never stop writing it.
  std::int32_t whitespace_max = 32;
  /// LengthTracker counts the characters of bounded strings (string_lengths.h) instead of the
  /// grammar.
  bool count_lengths = true;
};

struct GrammarStatistics {
  std::uint64_t compiled = 0;
  std::uint64_t refused = 0;
  std::uint64_t cache_hits = 0;
  std::int64_t compile_us = 0;  // sum over all compilations
  std::size_t cache_bytes = 0;
  std::int32_t waiting = 0;
};

/// See the file head. Threads: any.
class GrammarCompiler {
 public:
  using Grammar = std::shared_ptr<const CompiledGrammar>;
  using Done = std::function<void(Result<Grammar>)>;

  /// Token masks have mask_words(vocabulary) words. The first compilation reads the vocabulary.
  /// Requires: `tokenizer` outlives the compiler.
  GrammarCompiler(const Tokenizer& tokenizer, std::int64_t vocabulary, GrammarLimits limits = {});
  /// Waits for running compilations; waiting ones end with the error unavailable.
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  /// Calls `done` exactly once: at once if the cache has the grammar, else on a thread of the
  /// compiler, so `done` must return quickly. Errors: invalid_argument with a reason of
  /// constraint.h; resource_exhausted: queue_max compilations are waiting; unavailable: shutting
  /// down.
  void compile(Constraint constraint, Done done);
  /// The grammar if the cache has it, else null.
  Grammar find(const Constraint& constraint);
  /// compile(), but blocks until the grammar is ready. Not for threads that serve several requests.
  Result<Grammar> compile(Constraint constraint);

  GrammarStatistics statistics() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace koho
