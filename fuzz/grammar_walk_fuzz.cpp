// SPDX-License-Identifier: Apache-2.0
// Schemas, expressions, EBNF grammars and structural tags: compiling ends within its limits in a
// grammar or an error that is the client's; a walk through the grammar finds at every step that the
// mask and accept() agree, that a token is allowed or the text may end, and that rolling back gives
// the same mask. Texts of a schema are JSON. The first byte chooses the kind of constraint, and its
// high bit GrammarCompiler with its cache and its thread; the change of threads takes as long as a
// small grammar.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "grammar/constraint.h"
#include "grammar/grammar_compiler.h"
#include "grammar/xgrammar_adapter.h"
#include "tokenizer/tokenizer.h"

namespace koho {
namespace {

constexpr std::int64_t kVocabulary = 1088;  // with some bits that name no token

const Tokenizer& tokenizer() {
  static const Tokenizer loaded =
      std::move(*Tokenizer::load(KOHO_SOURCE_DIR "/tests/tokenizer/data/small/tokenizer.json"));
  return loaded;
}

Constraint constraint_of(unsigned kind, std::string text) {
  switch (kind % 4U) {
    case 0:
      return Constraint::regex(std::move(text));
    case 1:
      return Constraint::ebnf(std::move(text));
    case 2:
      return Constraint::structural_tag(std::move(text));
    default:
      return Constraint::json_schema(std::move(text));
  }
}

bool is_set(const std::vector<std::uint32_t>& mask, std::int32_t token) {
  return ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
}

/// Walks up to 24 tokens; returns the text, if it may end there.
std::string walk(const CompiledGrammar& grammar, std::uint32_t seed) {
  Result<std::unique_ptr<Matcher>> matcher = grammar.start();
  KOHO_CHECK(matcher.ok());
  std::vector<std::uint32_t> mask(mask_words(kVocabulary));
  std::vector<std::uint32_t> again(mask.size());
  std::string text;
  for (int step = 0; step < 24; ++step) {
    if (!(*matcher)->fill_mask(mask).ok())
      return {};  // a step beyond its time is the request's end
    std::int32_t chosen = -1;
    for (std::int32_t i = 0; i < tokenizer().vocab_size() && chosen < 0; ++i) {
      const auto token =
          static_cast<std::int32_t>((seed + static_cast<std::uint32_t>(i) * 2654435761U) %
                                    static_cast<std::uint32_t>(tokenizer().vocab_size()));
      if (is_set(mask, token)) chosen = token;
    }
    for (std::int32_t token = 0; token < tokenizer().vocab_size() && chosen < 0; ++token)
      if (is_set(mask, token)) chosen = token;
    if (chosen < 0) {
      KOHO_CHECK((*matcher)->can_end());
      return text;
    }
    const std::int32_t refused = static_cast<std::int32_t>(seed % kVocabulary);
    if (!is_set(mask, refused) && refused < tokenizer().vocab_size())
      KOHO_CHECK(!(*matcher)->accept(refused).ok());
    const Status taken = (*matcher)->accept(chosen);
    if (!taken.ok() && taken.error().code != ErrorCode::invalid_argument) return {};
    KOHO_CHECK(taken.ok());
    if (step % 4 == 3 && (*matcher)->rollback(1).ok()) {
      if (!(*matcher)->fill_mask(again).ok()) return {};
      KOHO_CHECK(mask == again);
      if (!(*matcher)->accept(chosen).ok()) return {};
    }
    text += tokenizer().token_bytes(chosen);
    seed = seed * 1664525U + 1013904223U;
    if ((*matcher)->can_end() && seed % 3U == 0) return text;
  }
  return {};
}

/// Takes what RFC 8259 allows, where a tree refuses equal keys and integers beyond 64 bits.
class Anything final : public json::Events {
 public:
  Status null() override { return {}; }
  Status boolean(bool /*value*/) override { return {}; }
  Status integer(std::int64_t /*value*/) override { return {}; }
  Status large_integer(std::string_view /*digits*/) override { return {}; }
  Status real(double /*value*/) override { return {}; }
  Status string(std::string /*value*/) override { return {}; }
  Status begin_object() override { return {}; }
  Status key(std::string /*name*/) override { return {}; }
  Status end_object() override { return {}; }
  Status begin_array() override { return {}; }
  Status end_array() override { return {}; }
};

/// Exponents keep one digit: the parser refuses numbers that are no double, which JSON allows.
std::string with_small_exponents(std::string_view text) {
  std::string made;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    made += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      made += text[++i];
    else if (text[i] == '"')
      in_string = !in_string;
    const auto is_digit = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (in_string || (text[i] != 'e' && text[i] != 'E') || i == 0 || !is_digit(i - 1)) continue;
    if (i + 1 < text.size() && (text[i + 1] == '+' || text[i + 1] == '-')) made += text[++i];
    if (is_digit(i + 1)) made += text[++i];
    while (is_digit(i + 1)) ++i;
  }
  return made;
}

bool is_json(std::string_view text) {
  Anything anything;
  return json::parse_events(with_small_exponents(text), {}, anything).ok();
}

constexpr GrammarLimits limits() {
  GrammarLimits limits;
  limits.compile_us_max = 300'000;
  limits.compile_bytes_max = 256U << 20U;
  return limits;
}

Result<std::shared_ptr<const CompiledGrammar>> compile(bool with_cache, Constraint constraint) {
  static const GrammarLimits kLimits = limits();
  static GrammarCompiler compiler(tokenizer(), kVocabulary, kLimits);
  static XgrammarAdapter adapter(
      tokenizer(), *XgrammarAdapter::read_vocabulary(tokenizer(), kVocabulary), kLimits);
  return with_cache ? compiler.compile(std::move(constraint)) : adapter.compile(constraint);
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace koho;
  if (size < 2) return 0;
  const unsigned kind = data[0];
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto compiled = compile(kind >= 128U, constraint_of(kind, text));
  if (!compiled.ok()) {
    const ErrorCode code = compiled.error().code;
    KOHO_CHECK(code == ErrorCode::invalid_argument || code == ErrorCode::resource_exhausted);
    KOHO_CHECK(!compiled.error().message.empty());
    return 0;
  }
  const std::string sampled = walk(**compiled, static_cast<std::uint32_t>(size) * 97U + kind);
  if (kind % 4U == 3 && !sampled.empty()) KOHO_CHECK(is_json(sampled));
  return 0;
}
