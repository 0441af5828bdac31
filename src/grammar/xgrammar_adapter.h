// SPDX-License-Identifier: Apache-2.0
// The only file that calls xgrammar. Catches its exceptions, turns its warnings (about parts of a
// grammar that it ignores) into errors, and bounds the time and memory of a compilation and of a
// matcher's step: third_party/guard.cpp counts allocations, reads the clock and throws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "grammar/grammar_compiler.h"
#include "grammar/string_lengths.h"
#include "grammar/tool_grammar.h"

namespace koho {

/// Compiles one grammar at a time: the vocabulary, and a cache of compiled parts of grammars.
/// Grammars may outlive it. Threads: one at a time.
class XgrammarAdapter {
 public:
  /// The tokens in xgrammar's representation, and what is derived from them. Built once, shared by
  /// all threads.
  class Vocabulary;
  static Result<std::shared_ptr<const Vocabulary>> read_vocabulary(const Tokenizer& tokenizer,
                                                                   std::int64_t vocabulary);

  /// `limits`, as they are at each call, must outlive the adapter.
  XgrammarAdapter(const Tokenizer& tokenizer,
                  std::shared_ptr<const Vocabulary> vocabulary,
                  const GrammarLimits& limits);
  ~XgrammarAdapter();
  XgrammarAdapter(const XgrammarAdapter&) = delete;
  XgrammarAdapter& operator=(const XgrammarAdapter&) = delete;

  /// Errors: as GrammarCompiler::compile().
  Result<std::shared_ptr<const CompiledGrammar>> compile(const Constraint& constraint);

 private:
  class Library;
  /// The text for xgrammar, and the length bounds that LengthTracker counts instead of xgrammar.
  struct GrammarSource {
    std::string text;
    std::optional<LengthPlan> lengths;
  };
  Result<GrammarSource> source_of(const Constraint& constraint,
                                  ToolStrictness strictness,
                                  std::int64_t end_ns) const;
  /// The whole, or an alternative of a union.
  Result<std::shared_ptr<const CompiledGrammar>> compile_part(const Constraint& constraint);
  Result<std::shared_ptr<const CompiledGrammar>> compile_with(const Constraint& constraint,
                                                              ToolStrictness strictness,
                                                              std::int64_t end_ns);
  /// Adds to `error`, which a compilation returned, the path of the subschema at fault.
  Error explain(const Constraint& constraint, Error error) const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  const GrammarLimits& limits_;
  std::unique_ptr<Library> library_;
  std::int64_t end_ns_ = 0;  // of the compilation, in the thread's time
};

}  // namespace koho
