// SPDX-License-Identifier: Apache-2.0
#include "grammar/xgrammar_adapter.h"

#include <algorithm>
#include <guard.h>
#include <optional>
#include <utility>
#include <vector>

#include <xgrammar/xgrammar.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "grammar/counted_grammar.h"
#include "grammar/grammar_speed.h"
#include "grammar/pattern_rewrite.h"
#include "grammar/structural_tag.h"
#include "grammar/text_limits.h"
#include "grammar/tool_grammar.h"
#include "grammar/union_grammar.h"
#include "grammar/xgrammar_messages.h"

namespace koho {
namespace {

/// Runs `work` within limits of time and memory, and returns what it throws as an Error.
template <typename Work>
Status guarded(std::int64_t time_us_max,
               std::size_t bytes_max,
               ErrorCode limit_code,
               Work work,
               bool* no_hash = nullptr,
               std::int64_t told_us_max = 0) {
  guard::Scope scope(time_us_max, bytes_max);
  try {
    KOHO_TRY(work());
  } catch (const guard::Exceeded&) {
    if (limit_code != ErrorCode::invalid_argument)
      return make_error(limit_code,
                        "one step of the grammar took more than {} ms of processor time or {} MB",
                        time_us_max / 1000, bytes_max >> 20U);
    return refused(kGrammarTooComplex,
                   fmt::format("compiling the grammar takes more than {} ms or {} MB",
                               std::max(told_us_max, time_us_max) / 1000, bytes_max >> 20U));
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::resource_exhausted, "out of memory while compiling a grammar");
  } catch (const guard::NoHash&) {
    if (no_hash != nullptr) *no_hash = true;
    return refused(kInvalidGrammar, kNoReason);
  } catch (const guard::NoAutomaton& error) {
    return refused(kGrammarTooComplex, message_of(error.what()));
  } catch (const guard::Unsatisfiable& error) {
    return refused(kUnsatisfiableSchema, message_of(error.what()));
  } catch (const std::exception& error) {
    return refused(kInvalidGrammar, message_of(error.what()));
  } catch (...) {
    return make_error(ErrorCode::internal, "xgrammar threw an unknown exception");
  }
  if (!scope.warning().empty()) return refused(kUnsupportedSchema, reason_of(scope.warning()));
  return {};
}

/// The same for a part of a compilation, which has until `end_ns` of the thread's time.
template <typename Work>
Status guarded_until(std::int64_t end_ns,
                     const GrammarLimits& limits,
                     Work work,
                     bool* no_hash = nullptr) {
  const std::int64_t left_us = std::max<std::int64_t>((end_ns - thread_ns()) / 1000, 1);
  return guarded(left_us, limits.compile_bytes_max, ErrorCode::invalid_argument, std::move(work),
                 no_hash, limits.compile_us_max);
}

/// Compiles `text` with xgrammar. Does not catch its exceptions. Passes the text itself, not an
/// xgrammar::Grammar: xgrammar's compiler prints a Grammar and parses it again, which corrupts a
/// character that precedes a hexadecimal digit.
xgrammar::CompiledGrammar compile_text(Constraint::Kind kind,
                                       const std::string& text,
                                       xgrammar::GrammarCompiler& compiler,
                                       const GrammarLimits& limits,
                                       bool compact = false) {
  using Kind = Constraint::Kind;
  switch (kind) {
    case Kind::json_object:
    case Kind::json_schema:
      return compiler.CompileJSONSchema(text, /*any_whitespace=*/!compact, std::nullopt,
                                        std::nullopt,
                                        /*strict_mode=*/true, limits.whitespace_max);
    case Kind::regex:
      return compiler.CompileRegex(text);
    case Kind::ebnf:
      return compiler.CompileGrammar(text, "root");
    case Kind::choice:
    case Kind::tool_calls:
    case Kind::structural_tag:
    case Kind::union_of:
      break;
  }
  return compiler.CompileStructuralTag(text);
}

/// Compiles the subschemas of `schema` one by one, innermost first, and returns the error of the
/// first that fails, with its path. nullopt if all compile, or if the search takes until `end_ns`
/// of the thread's time.
std::optional<Error> find_fault(const Schema& schema,
                                xgrammar::GrammarCompiler& compiler,
                                const GrammarLimits& limits,
                                std::int64_t end_ns) {
  // First the subschemas without $ref: one with a $ref may fail because of its target.
  for (const bool refers : {false, true})
    for (int i = schema.num_parts() - 1; i >= 0 && thread_ns() < end_ns; --i) {
      const std::optional<Schema::Part> part = schema.part(i);
      if (!part || part->refers != refers) continue;
      Status status = guarded_until(end_ns, limits, [&]() -> Status {
        compile_text(Constraint::Kind::json_schema, part->text, compiler, limits);
        return {};
      });
      if (status.ok()) continue;
      if (status.error().reason == kGrammarTooComplex) return std::nullopt;
      return placed(part->path, std::move(status).error());
    }
  return std::nullopt;
}

/// The mask of all tokens except the added (control) tokens.
using TextMask = std::shared_ptr<const std::vector<std::uint32_t>>;

TextMask text_mask(const Tokenizer& tokenizer, std::int64_t vocabulary) {
  std::vector<std::uint32_t> mask(mask_words(vocabulary));
  for (std::int32_t token = 0; token < std::min<std::int64_t>(tokenizer.vocab_size(), vocabulary);
       ++token)
    if (!tokenizer.is_added(token)) mask[static_cast<std::size_t>(token) / 32] |= 1U << token % 32;
  return std::make_shared<const std::vector<std::uint32_t>>(std::move(mask));
}

/// Whether a grammar of this kind may name tokens by id. xgrammar's cache identifies a part of a
/// grammar by a hash that contains the positions of the ids in the grammar's list of ids, not the
/// ids themselves: parts of two such grammars may be mistaken for each other, so they share no
/// cache.
bool may_name_tokens(Constraint::Kind kind) {
  using Kind = Constraint::Kind;
  return kind == Kind::tool_calls || kind == Kind::structural_tag || kind == Kind::ebnf;
}

class XgrammarMatcher final : public Matcher {
 public:
  /// `text`, if not null: only its tokens are ever allowed.
  XgrammarMatcher(xgrammar::GrammarMatcher matcher,
                  TextMask text,
                  std::int32_t vocabulary,
                  const GrammarLimits& limits)
      : matcher_(std::move(matcher)),
        text_(std::move(text)),
        vocabulary_(vocabulary),
        step_us_max_(limits.step_us_max),
        step_bytes_max_(limits.step_bytes_max) {}

  Status accept(std::int32_t token) override {
    bool accepted = false;
    const auto at = static_cast<std::size_t>(token);
    const bool is_text = text_ == nullptr ||
                         (at / 32 < text_->size() && (((*text_)[at / 32] >> (at % 32)) & 1U) != 0);
    if (is_text) KOHO_TRY(step([&] { accepted = matcher_.AcceptToken(token); }));
    if (accepted) return {};
    return make_error(ErrorCode::invalid_argument, "token {} is not allowed here", token);
  }

  Status rollback(std::int32_t tokens) override {
    return step([&] { matcher_.Rollback(tokens); });
  }

  Status fill_mask(std::span<std::uint32_t> mask) override {
    return step([&] {
      std::int64_t words = xgrammar::GetBitmaskSize(vocabulary_);
      KOHO_CHECK_LE(static_cast<std::size_t>(words), mask.size());
      std::ranges::fill(mask.subspan(static_cast<std::size_t>(words)), 0U);
      DLTensor tensor{};
      tensor.data = mask.data();
      tensor.device = DLDevice{kDLCPU, 0};
      tensor.ndim = 1;
      tensor.dtype = xgrammar::GetBitmaskDLType();
      tensor.shape = &words;
      matcher_.FillNextTokenBitmask(&tensor);
      if (text_ != nullptr)
        for (std::size_t i = 0; i < text_->size(); ++i) mask[i] &= (*text_)[i];
    });
  }

  bool can_end() const override { return matcher_.IsCompleted(); }

 private:
  template <typename Work>
  Status step(Work work) {
    const std::int64_t begin = thread_ns();
    Status status = limited(std::move(work));
    spent_us_ += (thread_ns() - begin) / 1000;
    ++steps_;
    // One step's limit holds for an odd step. A grammar whose every step takes long would slow
    // down the requests beside it; try_out() lets through half of what a token, which is two
    // steps, may take here.
    const std::int64_t allowed = 4 * step_us_max_ + steps_ * (step_us_max_ / 10);
    if (status.ok() && spent_us_ > allowed)
      status = make_error(
          ErrorCode::resource_exhausted, "the grammar takes {:.1f} ms of processor time a token",
          2.0 * static_cast<double>(spent_us_) / static_cast<double>(steps_) / 1000);
    if (!status.ok() && status.error().code == ErrorCode::resource_exhausted) {
      Error error = std::move(status).error();
      error.reason = kGrammarTooComplex;
      return error;
    }
    return status;
  }

  template <typename Work>
  Status limited(Work work) {
    Status status = guarded(step_us_max_, step_bytes_max_, ErrorCode::resource_exhausted, [&] {
      work();
      return Status();
    });
    // A warning or an exception about a token is not the client's fault.
    if (!status.ok() && status.error().code == ErrorCode::invalid_argument) {
      const bool warned = status.error().reason == kUnsupportedSchema;
      if (warned) return {};
      return make_error(ErrorCode::internal, "the grammar failed: {}", status.error().message);
    }
    return status;
  }

  xgrammar::GrammarMatcher matcher_;
  TextMask text_;
  std::int32_t vocabulary_;  // of the tokenizer; masks have more bits, which name no token
  std::int64_t step_us_max_;
  std::size_t step_bytes_max_;
  std::int64_t spent_us_ = 0;
  std::int64_t steps_ = 0;
};

class XgrammarGrammar final : public CompiledGrammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, TextMask text, const GrammarLimits& limits)
      : grammar_(std::move(grammar)),
        text_(std::move(text)),
        limits_(limits),
        bytes_(grammar_.MemorySizeBytes()) {}

  Result<std::unique_ptr<Matcher>> start() const override {
    std::unique_ptr<Matcher> matcher;
    KOHO_TRY(guarded(limits_.step_us_max, limits_.step_bytes_max, ErrorCode::resource_exhausted,
                     [&]() -> Status {
                       matcher = std::make_unique<XgrammarMatcher>(
                           xgrammar::GrammarMatcher(grammar_, std::nullopt, true), text_,
                           grammar_.GetTokenizerInfo().GetVocabSize(), limits_);
                       return {};
                     }));
    return matcher;
  }
  std::size_t bytes() const override { return bytes_; }

 private:
  xgrammar::CompiledGrammar grammar_;
  TextMask text_;
  GrammarLimits limits_;
  std::size_t bytes_;
};

}  // namespace

class XgrammarAdapter::Vocabulary {
 public:
  xgrammar::TokenizerInfo info;
  std::int64_t size = 0;
  TextMask text;
  std::shared_ptr<const CountedTokens> string_tokens;
  std::shared_ptr<const CountedTokens> text_tokens;
};

class XgrammarAdapter::Library {
 public:
  Library(const Vocabulary& vocabulary, const GrammarLimits& limits, bool keeps_parts = true)
      : compiler(vocabulary.info,
                 /*max_threads=*/1,
                 /*cache_enabled=*/keeps_parts && limits.parts_bytes_max > 0,
                 static_cast<std::int64_t>(limits.parts_bytes_max)) {}
  xgrammar::GrammarCompiler compiler;
};

Result<std::shared_ptr<const XgrammarAdapter::Vocabulary>> XgrammarAdapter::read_vocabulary(
    const Tokenizer& tokenizer, std::int64_t vocabulary) {
  std::vector<std::string> tokens(
      static_cast<std::size_t>(std::min<std::int64_t>(tokenizer.vocab_size(), vocabulary)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!tokenizer.is_token(id)) continue;
    tokens[i] = tokenizer.token_bytes(id);
    // The byte 0xFF occurs in no UTF-8 text, so a grammar can match a control token only by id.
    if (tokenizer.is_added(id)) tokens[i].insert(0, 1, '\xFF');
  }
  std::shared_ptr<const Vocabulary> made;
  KOHO_TRY(guarded(0, 0, ErrorCode::internal, [&]() -> Status {
    made = std::make_shared<const Vocabulary>(
        Vocabulary{xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, std::nullopt,
                                           std::vector<std::int32_t>{}),
                   vocabulary, text_mask(tokenizer, vocabulary),
                   std::make_shared<const CountedTokens>(tokenizer, vocabulary, true),
                   std::make_shared<const CountedTokens>(tokenizer, vocabulary, false)});
    return {};
  }));
  return made;
}

XgrammarAdapter::XgrammarAdapter(const Tokenizer& tokenizer,
                                 std::shared_ptr<const Vocabulary> vocabulary,
                                 const GrammarLimits& limits)
    : tokenizer_(tokenizer),
      vocabulary_(std::move(vocabulary)),
      limits_(limits),
      library_(std::make_unique<Library>(*vocabulary_, limits_)) {}

XgrammarAdapter::~XgrammarAdapter() = default;

Error XgrammarAdapter::explain(const Constraint& constraint, Error error) const {
  if (!is_grammar_error(error) || error.reason == kGrammarTooComplex) return error;
  Library library(*vocabulary_, limits_);
  if (constraint.kind == Constraint::Kind::json_schema) {
    const Result<Schema> schema = Schema::read(constraint.text, limits_.schema);
    if (!schema.ok()) return error;
    if (std::optional<Error> found = find_fault(*schema, library.compiler, limits_, end_ns_))
      return *found;
    return placed("$", std::move(error));
  }
  for (const ToolGrammar& tool : constraint.tools) {
    if (thread_ns() > end_ns_) break;
    if (!tool.strict || tool.parameters.empty()) continue;
    const Result<Schema> schema = Schema::read(tool.parameters, limits_.schema);
    if (!schema.ok()) continue;
    if (std::optional<Error> found = find_fault(*schema, library.compiler, limits_, end_ns_))
      return placed_at_tool(tool.name, std::move(*found));
  }
  return error;
}

Result<std::shared_ptr<const CompiledGrammar>> XgrammarAdapter::compile(
    const Constraint& constraint) {
  end_ns_ = thread_ns() + 1000 * limits_.compile_us_max;
  return compile_part(constraint);
}

Result<std::shared_ptr<const CompiledGrammar>> XgrammarAdapter::compile_part(
    const Constraint& constraint) {
  using Kind = Constraint::Kind;
  if (constraint.kind == Kind::union_of) {
    std::vector<std::shared_ptr<const CompiledGrammar>> grammars;
    for (const Constraint& alternative : constraint.alternatives) {
      KOHO_TRY_ASSIGN(std::shared_ptr<const CompiledGrammar> grammar, compile_part(alternative));
      grammars.push_back(std::move(grammar));
    }
    return union_of(std::move(grammars));
  }
  // A schema that cannot be compiled is no reason to refuse a forced call of a tool that is not
  // strict: relax the schema step by step.
  const bool may_relax = std::ranges::any_of(
      constraint.tools, [&](const ToolGrammar& tool) { return may_be_relaxed(constraint, tool); });
  // Free arguments take little, but must have it.
  const std::int64_t reserve_ns = may_relax ? 1000 * limits_.compile_us_max / 4 : 0;
  for (ToolStrictness strictness = ToolStrictness::best_effort;;) {
    const bool is_last = strictness == ToolStrictness::names_only;
    const std::int64_t end_ns =
        is_last ? std::max(end_ns_, thread_ns() + reserve_ns) : end_ns_ - reserve_ns;
    Result<std::shared_ptr<const CompiledGrammar>> compiled =
        compile_with(constraint, strictness, end_ns);
    if (compiled.ok()) return compiled;
    const Error& error = compiled.error();
    if (!is_grammar_error(error) || !may_relax || is_last)
      return explain(constraint, std::move(compiled).error());
    // A schema that was too complex goes straight to free arguments: there is no more time.
    const bool again =
        strictness == ToolStrictness::best_effort && error.reason != kGrammarTooComplex;
    strictness = again ? ToolStrictness::structure_only : ToolStrictness::names_only;
  }
}

Result<XgrammarAdapter::GrammarSource> XgrammarAdapter::source_of(const Constraint& constraint,
                                                                  ToolStrictness strictness,
                                                                  std::int64_t end_ns) const {
  using Kind = Constraint::Kind;
  GrammarSource source;
  switch (constraint.kind) {
    case Kind::json_object:
      source.text = R"({"type":"object","additionalProperties":true})";
      break;
    case Kind::json_schema: {
      KOHO_TRY_ASSIGN(Schema schema, Schema::read(constraint.text, limits_.schema));
      if (limits_.count_lengths) source.lengths = schema.take_lengths();
      source.text = schema.text();
      break;
    }
    case Kind::regex: {
      KOHO_TRY(check_text("regex", constraint.text, limits_));
      KOHO_TRY_ASSIGN(source.text, PatternRewriter().rewrite(constraint.text, false));
      if (std::optional<CountedPattern> counted = counted_pattern(source.text);
          counted && limits_.count_lengths) {
        source.text = std::move(counted->unbounded);
        source.lengths = LengthPlan{.places = {}, .whole = counted->bounds};
      }
      break;
    }
    case Kind::ebnf:
      KOHO_TRY(check_text("grammar", constraint.text, limits_));
      KOHO_TRY(check_grammar_escapes(constraint.text));
      source.text = constraint.text;
      break;
    case Kind::choice: {
      KOHO_TRY_ASSIGN(source.text, choice_tag(constraint, limits_));
      break;
    }
    case Kind::tool_calls: {
      const auto schemas = std::ranges::count_if(constraint.tools, [&](const ToolGrammar& tool) {
        return has_schema(constraint, tool, strictness);
      });
      if (schemas > limits_.tools_max)
        return refused(kGrammarTooComplex,
                       fmt::format("tools: at most {} tools with schemas are supported, found {}",
                                   limits_.tools_max, schemas));
      KOHO_TRY_ASSIGN(source.text,
                      tool_call_tag(constraint, tokenizer_, limits_, strictness, end_ns));
      break;
    }
    case Kind::structural_tag: {
      KOHO_TRY_ASSIGN(source.text, structural_tag_text(constraint.text, limits_));
      break;
    }
    case Kind::union_of:
      break;
  }
  return source;
}

Result<std::shared_ptr<const CompiledGrammar>> XgrammarAdapter::compile_with(
    const Constraint& constraint, ToolStrictness strictness, std::int64_t end_ns) {
  KOHO_TRY_ASSIGN(GrammarSource source, source_of(constraint, strictness, end_ns));
  std::unique_ptr<Library> own;
  if (may_name_tokens(constraint.kind)) own = std::make_unique<Library>(*vocabulary_, limits_);
  std::shared_ptr<const CompiledGrammar> compiled;
  // xgrammar's any_text, and the text between its tags, allow control tokens too.
  const TextMask only =
      constraint.kind == Constraint::Kind::structural_tag ? vocabulary_->text : nullptr;
  bool no_hash = false;
  const auto attempt = [&](Library& library) {
    no_hash = false;
    return guarded_until(
        end_ns, limits_,
        [&]() -> Status {
          compiled = std::make_shared<const XgrammarGrammar>(
              compile_text(constraint.kind, source.text, library.compiler, limits_,
                           constraint.compact),
              only, limits_);
          return {};
        },
        &no_hash);
  };
  Status status = attempt(own ? *own : *library_);
  if (!status.ok() && no_hash) {
    // xgrammar cannot hash every grammar for its cache of parts: try again without that cache.
    Library without_parts(*vocabulary_, limits_, /*keeps_parts=*/false);
    status = attempt(without_parts);
  }
  if (!status.ok()) {
    // An interrupted compilation may have left incomplete parts in the cache.
    if (!own) library_ = std::make_unique<Library>(*vocabulary_, limits_);
    return std::move(status).error();
  }
  if (compiled->bytes() > limits_.grammar_bytes_max)
    return refused(kGrammarTooComplex,
                   fmt::format("the compiled grammar takes {} MB; the limit is {} MB",
                               compiled->bytes() >> 20U, limits_.grammar_bytes_max >> 20U));
  if (source.lengths) {
    const auto& tokens =
        source.lengths->whole ? vocabulary_->text_tokens : vocabulary_->string_tokens;
    compiled = count_lengths(std::move(compiled), std::move(*source.lengths), tokens);
  }
  KOHO_TRY(try_out(*compiled, mask_words(vocabulary_->size), limits_, end_ns));
  return compiled;
}

}  // namespace koho
