// SPDX-License-Identifier: Apache-2.0
// Length bounds and patterns of strings: the masks of LengthTracker equal those of a grammar that
// counts characters itself, and masks inside patterns are right and cheap.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/grammar_compiler.h"
#include "grammar_accepts.h"
#include "grammar_walk.h"
#include "tests/support/thread_time.h"
#include "tests/tokenizer/tokenizer_json.h"

namespace koho {
namespace {

/// Whether the last byte so far and the first byte of `token` start an overlong form, a surrogate
/// or a code point beyond U+10FFFF.
bool begins_overlong(const Tokenizer& tokenizer,
                     const std::vector<std::int32_t>& ids,
                     std::int32_t token) {
  if (ids.empty() || tokenizer.token_bytes(token).empty()) return false;
  const auto lead = static_cast<unsigned char>(tokenizer.token_bytes(ids.back()).back());
  const auto next = static_cast<unsigned char>(tokenizer.token_bytes(token).front());
  return (lead == 0xE0 && next < 0xA0) || (lead == 0xED && next >= 0xA0) ||
         (lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next >= 0x90);
}

/// Walks both grammars along the same tokens and expects the same mask at every step.
void expect_alike(const CompiledGrammar& one, const CompiledGrammar& other, std::uint64_t seed) {
  const Tokenizer& tokenizer = testing::tiny_tokenizer();
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  std::vector<std::uint32_t> other_mask = mask;
  const std::unique_ptr<Matcher> matcher = *one.start();
  const std::unique_ptr<Matcher> other_matcher = *other.start();
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 120; ++i) {
    ASSERT_TRUE(matcher->fill_mask(mask).ok());
    ASSERT_TRUE(other_matcher->fill_mask(other_mask).ok());
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
      const auto bit = [&](const auto& words) {
        return ((words[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
      };
      // Inside a character, the grammar that counts characters itself allows bytes that are not
      // UTF-8 (E0 80, an overlong form).
      if (!bit(mask) && begins_overlong(tokenizer, ids, token)) continue;
      ASSERT_EQ(bit(mask), bit(other_mask))
          << "'" << tokenizer.token_bytes(token) << "' after " << tokenizer.decode(ids);
      if (bit(mask)) allowed.push_back(token);
    }
    ASSERT_EQ(matcher->can_end(), other_matcher->can_end()) << tokenizer.decode(ids);
    if (allowed.empty()) break;
    const std::int32_t token = allowed[random() % allowed.size()];
    ASSERT_TRUE(matcher->accept(token).ok());
    ASSERT_TRUE(other_matcher->accept(token).ok());
    if (random() % 8 == 0) {
      ASSERT_TRUE(matcher->rollback(1).ok());
      ASSERT_TRUE(matcher->accept(token).ok());
    }
    ids.push_back(token);
  }
}

TEST(StringLengths, CountedLengthsAllowTheTokensThatTheGrammarWouldAllow) {
  GrammarLimits by_grammar = testing::patient_limits();
  by_grammar.count_lengths = false;
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  GrammarCompiler other(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                        by_grammar);
  const std::vector<Constraint> constraints{
      Constraint::json_schema(R"({"type":"string","minLength":3,"maxLength":9})"),
      Constraint::json_schema(R"({"type":"string","minLength":2})"),
      Constraint::json_schema(R"({"type":"string","pattern":"^[a-zäß]{2,7}$"})"),
      Constraint::json_schema(
          R"({"type":"object","properties":{"a":{"type":"string","maxLength":4},"b \"q":{"type":["string","null"],
              "minLength":1,"maxLength":3},"c":{"type":"string"}},"required":["a","b \"q"]})"),
      Constraint::json_schema(
          R"({"type":"array","prefixItems":[{"type":"string","maxLength":2},{"type":"integer"}],
              "items":{"type":"string","minLength":4,"maxLength":5}})"),
      Constraint::json_schema(
          R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"string","minLength":1,"maxLength":3},
              "k":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["v"]}},"$ref":"#/$defs/n"})"),
      Constraint::json_schema(
          R"({"type":"object","additionalProperties":{"type":"string","maxLength":3}})"),
      Constraint::json_schema(
          R"({"type":"array","items":{"anyOf":[{"type":"string","minLength":2,"maxLength":3},{"type":"integer"},
              {"type":"object","properties":{"x":{"type":"string","maxLength":1}},"required":["x"]}]}})"),
      // Two schemas with different bounds apply to one place: the bounds stay in the grammar.
      Constraint::json_schema(
          R"({"anyOf":[{"type":"object","properties":{"a":{"type":"string","maxLength":3},"b":{"type":"integer"}},
              "required":["a","b"]},{"type":"object","properties":{"a":{"enum":["longer"]},
              "c":{"type":"string","minLength":2}},"required":["a","c"]}]})"),
      Constraint::regex("[^x]{4,11}"),
      Constraint::regex("^[0-9a-f]{6}$"),
      Constraint::regex(".{1,12}"),
  };
  for (std::size_t i = 0; i < constraints.size(); ++i) {
    const auto counted = compiler.compile(constraints[i]);
    const auto whole = other.compile(constraints[i]);
    ASSERT_EQ(counted.ok(), whole.ok()) << i;
    if (!counted.ok()) continue;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(fmt::format("constraint {}, seed {}", i, seed));
      expect_alike(**counted, **whole, seed);
      if (HasFatalFailure()) return;
    }
  }
}

/// Where a short string and a longer address may stand, the shorter bounds counted for both: four
/// characters of an address ended in a dead end.
TEST(StringLengths, BoundsOfOneSchemaLeadNoFormatToADeadEnd) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  const auto grammar = compiler.compile(Constraint::json_schema(
      R"({"anyOf":[{"type":"string","minLength":4,"maxLength":4},{"type":"boolean"},
          {"type":"string","format":"uri","minLength":1,"maxLength":2083}]})"));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (const char* text : {R"("love")", R"("http://example.com/")"})
    EXPECT_TRUE(testing::accepts(**grammar, text)) << text;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    testing::expect_accept_agrees_with_mask(**grammar, seed);
}

TEST(StringLengths, LongBoundsAreEnforced) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(
      Constraint::json_schema(R"({"type":"string","minLength":1000,"maxLength":100000})"));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  const auto accept = [&](std::string_view text) {
    const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode(text);
    return std::ranges::all_of(ids,
                               [&](std::int32_t token) { return matcher->accept(token).ok(); });
  };
  ASSERT_TRUE(accept("\""));
  for (int i = 0; i < 999; ++i) ASSERT_TRUE(accept("1")) << i;
  EXPECT_FALSE(accept("\""));
  ASSERT_TRUE(accept("2"));
  EXPECT_TRUE(accept("\""));
  EXPECT_TRUE(matcher->can_end());
}

TEST(StringLengths, AcceptAgreesWithTheMaskForPatterns) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  for (const char* pattern :
       {"^[a-z]{1,5}$", "^[A-Z]{2}-[0-9]{2}$", "^(a|bb)+$", "^.{0,3}$", "x", "^(ab?){1,300}$"})
    for (
        const char* schema :
        {R"({{"type":"string","pattern":"{}"}})",
         R"({{"type":"array","items":{{"type":"string","pattern":"{}"}}}})",
         R"({{"type":"array","prefixItems":[{{"type":"string","pattern":"{0}"}},{{"anyOf":[{{"type":"string","pattern":"{0}"}},{{"type":"null"}}]}}]}})",
         R"({{"properties":{{"a":{{"type":"string","pattern":"{0}"}},"b":{{"type":"string","pattern":"{0}"}}}},"required":["b"]}})",
         R"({{"type":"object","patternProperties":{{"{0}":{{"type":"string","pattern":"{0}"}}}}}})",
         R"({{"type":"object","propertyNames":{{"pattern":"{}"}}}})"}) {
      const std::string text = fmt::format(fmt::runtime(schema), pattern);
      SCOPED_TRACE(text);
      const auto grammar = compiler.compile(Constraint::json_schema(text));
      ASSERT_TRUE(grammar.ok()) << grammar.error().message;
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        testing::expect_accept_agrees_with_mask(**grammar, seed, "\"");
        if (HasFatalFailure()) return;
      }
    }
}

/// Processor time of one fill_mask() inside a string of the schema: the least of several.
double mask_us(const std::string& schema, const Tokenizer& tokenizer) {
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size(), testing::patient_limits());
  const auto grammar = compiler.compile(Constraint::json_schema(schema));
  EXPECT_TRUE(grammar.ok()) << grammar.error().message;
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  for (const char byte : {'[', '"', 'a'}) EXPECT_TRUE(matcher->accept(byte).ok());
  double least = 1e9;
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(matcher->accept('a').ok());
    const double begin = testing::thread_us();
    EXPECT_TRUE(matcher->fill_mask(mask).ok());
    least = std::min(least, testing::thread_us() - begin);
  }
  return least;
}

TEST(StringLengths, AMaskInsideAPatternCostsLittleMoreThanInsideAnyString) {
  // Tokens that close a string and continue with a letter, which no JSON allows.
  testing::TokenizerRecipe recipe;
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b)
      for (char c = 'a'; c <= 'f'; ++c) recipe.tokens.push_back({a, b, '"', c});
  const Result<Tokenizer> tokenizer = Tokenizer::from_json(testing::tokenizer_json(recipe));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const double any = mask_us(R"({"type":"array","items":{"type":"string"}})", *tokenizer);
  const double by_pattern = mask_us(
      R"({"type":"array","items":{"type":"string","pattern":"^[a-z]+[0-9]*$"}})", *tokenizer);
  EXPECT_LT(by_pattern, 10 * any);
}

}  // namespace
}  // namespace koho
