// SPDX-License-Identifier: Apache-2.0
// Schemas, expressions, EBNF grammars and structural tags: compiling ends within its limits in a
// grammar or an error that is the client's; a walk through the grammar finds at every step that the
// mask and accept() agree, that a token is allowed or the text may end, and that rolling back gives
// the same mask. Texts of a schema are JSON. The first byte chooses the kind of constraint, and its
// high bit, for one input in eight, GrammarCompiler with its cache and its thread; the change of
// threads takes as long as a small grammar. One input in 32 has wide limits.
#include <bit>
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

/// One of the tokens that `mask` allows, by `seed`; -1: it allows none.
std::int32_t allowed_token(std::vector<std::uint32_t> mask, std::uint32_t seed) {
  const auto tokens = static_cast<std::size_t>(tokenizer().vocab_size());
  mask.resize(tokens / 32 + 1);
  mask.back() &= (1U << tokens % 32) - 1U;  // the others name no token
  std::uint32_t allowed = 0;
  for (const std::uint32_t word : mask) allowed += static_cast<std::uint32_t>(std::popcount(word));
  if (allowed == 0) return -1;
  std::uint32_t before = (seed >> 8U) % allowed;  // the low bits repeat
  std::size_t at = 0;
  while (before >= static_cast<std::uint32_t>(std::popcount(mask[at])))
    before -= static_cast<std::uint32_t>(std::popcount(mask[at++]));
  std::uint32_t word = mask[at];
  while (before-- > 0) word &= word - 1;
  return static_cast<std::int32_t>(at * 32) + std::countr_zero(word);
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
    const std::int32_t chosen = allowed_token(mask, seed);
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

/// Of one input in kWhole all limits are wide. Of the others little is compiled: what is large is
/// refused early, and a run of white space is short, which is most of the work of many a schema.
constexpr std::uint32_t kWhole = 32;
constexpr std::size_t kWholeBytes = 256U << 20U;
constexpr std::size_t kSchemaBytes = 4U << 20U;  // any schema's common rules take one to two
constexpr std::size_t kTextBytes = 256U << 10U;  // of a regular expression or an EBNF grammar

constexpr GrammarLimits limits(std::size_t bytes_max) {
  GrammarLimits limits;
  limits.compile_us_max = 300'000;
  limits.compile_bytes_max = bytes_max;
  if (bytes_max == kWholeBytes) return limits;
  limits.compile_us_max = 20'000;
  limits.step_us_max = 5'000;
  limits.whitespace_max = 2;
  return limits;
}

class Setup {
 public:
  explicit Setup(std::size_t bytes_max)
      : limits_(limits(bytes_max)),
        compiler_(tokenizer(), kVocabulary, limits_),
        adapter_(
            tokenizer(), *XgrammarAdapter::read_vocabulary(tokenizer(), kVocabulary), limits_) {}

  Result<std::shared_ptr<const CompiledGrammar>> compile(bool with_cache, Constraint constraint) {
    return with_cache ? compiler_.compile(std::move(constraint)) : adapter_.compile(constraint);
  }

 private:
  GrammarLimits limits_;
  GrammarCompiler compiler_;
  XgrammarAdapter adapter_;
};

/// Always the same for one input, and another for one that differs in a byte.
std::uint32_t digest(std::string_view text) {
  std::uint32_t digest = 2166136261U;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 16777619U;
  return digest ^ (digest >> 16U);
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace koho;
  if (size < 2) return 0;
  const unsigned kind = data[0];
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  static Setup whole(kWholeBytes);
  static Setup schemas(kSchemaBytes);
  static Setup texts(kTextBytes);
  const std::uint32_t number = digest(text);
  Setup& setup = number % kWhole == 0 ? whole : kind % 4U < 2 ? texts : schemas;
  const auto compiled =
      setup.compile(kind >= 128U && number / kWhole % 8 == 0, constraint_of(kind, text));
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
