// SPDX-License-Identifier: Apache-2.0
// Constraints in, grammars over the model's tokens out: on threads of its own, within limits of
// time and memory, remembered by their text. Nothing a client writes can hang it or make it fail in
// any way but an Error.
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
  SchemaLimits schema;                          // of a schema's text; of all other texts, too
  std::int32_t choices_max = 1000;              // of Constraint::choices
  std::int32_t tools_max = 128;                 // of Constraint::tools, with schemas
  std::int64_t compile_us_max = 1'000'000;      // of one compilation, once it has begun
  std::size_t compile_bytes_max = 2UL << 30U;   // allocated by it, all allocations together
  std::size_t grammar_bytes_max = 64UL << 20U;  // of one grammar
  std::int64_t step_us_max = 50'000;            // of one step of a matcher
  std::size_t step_bytes_max = 256UL << 20U;
  std::size_t cache_bytes_max = 256UL << 20U;  // of the grammars kept
  std::size_t parts_bytes_max = 128UL << 20U;  // of parts kept for other schemas, a thread
  std::int32_t threads = 1;
  std::int32_t queue_max = 256;  // compilations that wait
  /// White space in a row within JSON: models may go on with it for ever.
  std::int32_t whitespace_max = 32;
  /// Characters of bounded strings are counted beside the grammar (string_lengths.h), not by it.
  bool count_lengths = true;
};

struct GrammarStatistics {
  std::uint64_t compiled = 0;
  std::uint64_t refused = 0;
  std::uint64_t cache_hits = 0;
  std::int64_t compile_us = 0;  // of all together
  std::size_t cache_bytes = 0;
  std::int32_t waiting = 0;
};

/// Threads: any.
class GrammarCompiler {
 public:
  using Grammar = std::shared_ptr<const CompiledGrammar>;
  using Done = std::function<void(Result<Grammar>)>;

  /// For masks of mask_words(vocabulary) words; `tokenizer` outlives the compiler. The vocabulary
  /// is read by the first compilation.
  GrammarCompiler(const Tokenizer& tokenizer, std::int64_t vocabulary, GrammarLimits limits = {});
  /// Waits for the compilation under way; those that wait end as unavailable.
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  /// Calls `done` once: now, if the grammar is known, else from a thread of the compiler, which
  /// `done` must not hold up. Errors: invalid_argument with one of the error reasons of constraint.h;
  /// resource_exhausted: too many wait; unavailable: shutting down.
  void compile(Constraint constraint, Done done);
  /// The same, waiting. Not for threads that serve others.
  Result<Grammar> compile(Constraint constraint);

  GrammarStatistics statistics() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace koho
