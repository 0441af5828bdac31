// SPDX-License-Identifier: Apache-2.0
// The only way into xgrammar: catches its exceptions, takes its warnings as errors, and bounds the
// time and memory of a compilation.
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

/// One thread's access: the vocabulary, and parts of grammars kept for the next ones. Threads: one
/// at a time; the grammars it makes outlive it.
class XgrammarAdapter {
 public:
  /// The tokens as xgrammar wants them; made once, shared by all threads.
  class Vocabulary;
  static Result<std::shared_ptr<const Vocabulary>> read_vocabulary(const Tokenizer& tokenizer,
                                                                   std::int64_t vocabulary);

  XgrammarAdapter(const Tokenizer& tokenizer,
                  std::shared_ptr<const Vocabulary> vocabulary,
                  const GrammarLimits& limits);
  ~XgrammarAdapter();
  XgrammarAdapter(const XgrammarAdapter&) = delete;
  XgrammarAdapter& operator=(const XgrammarAdapter&) = delete;

  /// `fail_at`: as guard::Scope's, for tests. Errors: as GrammarCompiler::compile.
  Result<std::shared_ptr<const CompiledGrammar>> compile(const Constraint& constraint,
                                                         std::uint64_t fail_at = 0);

 private:
  class Library;
  /// What xgrammar reads, and the bounds of strings that are counted beside its grammar.
  struct GrammarSource {
    std::string text;
    std::optional<LengthPlan> lengths;
  };
  Result<GrammarSource> source_of(const Constraint& constraint, ToolStrictness strictness) const;
  Result<std::shared_ptr<const CompiledGrammar>> compile_with(const Constraint& constraint,
                                                              ToolStrictness strictness,
                                                              std::uint64_t fail_at);
  /// `error`, which the compilation gave, with the place of the schema at fault.
  Error explain(const Constraint& constraint, Error error) const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  GrammarLimits limits_;
  std::unique_ptr<Library> library_;
};

}  // namespace koho
