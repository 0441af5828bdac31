// SPDX-License-Identifier: Apache-2.0
// Random walks through compiled grammars. Each step samples uniformly from the allowed tokens,
// which is harsher than any model. Whatever a walk completes must satisfy the constraint.
#include "grammar_walk.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "grammar/forced_tokens.h"
#include "grammar/grammar_compiler.h"
#include "validator.h"

namespace koho {
namespace {

const std::string kRoot = KOHO_SOURCE_DIR;

TEST(GrammarWalk, EveryCompletedWalkIsValidByItsSchema) {
  const Result<std::string> file = read_file(kRoot + "/tests/grammar/data/schemas.json", 1U << 24U);
  ASSERT_TRUE(file.ok());
  const Result<json::Value> schemas = json::parse(*file);
  ASSERT_TRUE(schemas.ok()) << schemas.error().message;
  ASSERT_EQ(schemas->array()->size(), 200U);
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  int ended = 0;
  std::size_t line = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    // The file has one schema per line.
    line = file->find('\n', line) + 1;
    std::string text = file->substr(line, file->find('\n', line) - line);
    if (text.ends_with(',')) text.pop_back();
    const auto grammar = compiler.compile(Constraint::json_schema(text));
    ASSERT_TRUE(grammar.ok()) << i << ": " << grammar.error().message << "\n" << text;
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const testing::Walk found = testing::random_walk(**grammar, 1000 * i + seed, 250);
      if (!found.ended) continue;
      const Result<json::Value> value = json::parse(found.text);
      // Valid JSON that the parser refuses: an integer beyond 64 bits.
      if (!value.ok() && value.error().reason == ErrorReason::beyond_64_bits) continue;
      ASSERT_TRUE(value.ok()) << i << ": " << value.error().message << "\n" << found.text;
      ++ended;
      EXPECT_EQ(testing::validate_json((*schemas->array())[i], *value), "")
          << i << ": " << text << "\n"
          << found.text;
    }
  }
  EXPECT_GT(ended, 260);
}

TEST(GrammarWalk, EveryWalkMatchesExactlyOneOptionOfOneOf) {
  const std::vector<std::string> schemas{
      // A discriminated union as pydantic writes it. A discriminator with a default is not in
      // `required`.
      R"({"$defs":{"A":{"properties":{"kind":{"const":"a","type":"string"},"x":{"type":"integer"}},)"
      R"("required":["kind","x"],"type":"object"},"B":{"properties":{"kind":{"const":"b","default":"b",)"
      R"("type":"string"},"y":{"type":"boolean"}},"required":["y"],"type":"object"}},"properties":{"item":)"
      R"({"discriminator":{"mapping":{"a":"#/$defs/A","b":"#/$defs/B"},"propertyName":"kind"},)"
      R"("oneOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]}},"required":["item"],"type":"object"})",
      // Chains of $ref, nested choices, `definitions`.
      R"({"definitions":{"A":{"$ref":"#/definitions/AA"},"AA":{"type":"object","properties":{"k":)"
      R"({"$ref":"#/definitions/one"}},"required":["k"]},"one":{"enum":[1,2]},"BC":{"anyOf":[{"type":"null"},)"
      R"({"allOf":[{"$ref":"#/definitions/C"}]}]},"C":{"type":"object","properties":{"k":{"enum":[3,"1"]}},)"
      R"("required":["k"]}},"oneOf":[{"$ref":"#/definitions/A"},{"$ref":"#/definitions/BC"}]})",
      // An enum as serde writes it: each option requires a property that the other cannot have.
      R"({"oneOf":[{"type":"object","properties":{"A":{"type":"null"}},"required":["A"],"additionalProperties":false},)"
      R"({"type":"object","properties":{"B":{"type":"boolean"}},"required":["B"],"additionalProperties":false}]})",
      R"({"oneOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},)"
      R"({"properties":{"b":{"type":"null"}},"required":["b"]}]})",
      R"({"oneOf":[{"type":["boolean","null"]},{"type":"integer"},{"enum":["n",[true]]},{"const":"m"}]})"};
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  for (const std::string& schema : schemas) {
    const auto grammar = compiler.compile(Constraint::json_schema(schema));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message << "\n" << schema;
    const Result<json::Value> root = json::parse(schema);
    std::set<std::string> texts;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const testing::Walk found = testing::random_walk(**grammar, seed, 250);
      if (!found.ended) continue;
      const Result<json::Value> value = json::parse(found.text);
      if (!value.ok() && value.error().reason == ErrorReason::beyond_64_bits) continue;
      ASSERT_TRUE(value.ok()) << value.error().message << "\n" << found.text;
      texts.insert(found.text);
      EXPECT_EQ(testing::validate_json(*root, *value), "") << schema << "\n" << found.text;
    }
    EXPECT_GT(texts.size(), 1U) << schema;
  }
}

TEST(GrammarWalk, CompactJsonHasOnlySingleSpaces) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}},)"
      R"("b":{"type":"string","maxLength":5}},"required":["a","b"]})";
  for (const bool compact : {false, true})
    for (Constraint constraint : {Constraint::json_schema(schema), Constraint::json_object()}) {
      constraint.compact = compact;
      const auto grammar = compiler.compile(constraint);
      ASSERT_TRUE(grammar.ok()) << grammar.error().message;
      const auto takes = [&](std::string_view text) {
        const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
        const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode(text);
        for (const std::int32_t token : ids)
          if (!matcher->accept(token).ok()) return false;
        return matcher->can_end();
      };
      EXPECT_TRUE(takes(R"({"a": [1, 2], "b": "x  y"})"));
      EXPECT_EQ(takes(R"({"a":  [1, 2], "b": "x  y"})"), !compact);
      EXPECT_EQ(takes("{\n\"a\": [1, 2], \"b\": \"x  y\"}"), !compact);
    }
}

TEST(GrammarWalk, EveryWalkIsOneOfTheChoices) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const std::vector<std::string> choices{"yes", "no", "größer als 3", "no, thanks"};
  const auto grammar = compiler.compile(Constraint::choice(choices));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const testing::Walk found = testing::random_walk(**grammar, seed, 100);
    EXPECT_TRUE(found.ended);
    EXPECT_NE(std::ranges::find(choices, found.text), choices.end()) << found.text;
  }
}

TEST(GrammarWalk, EveryWalkMatchesTheRegularExpression) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(Constraint::regex("[0-9]{3}-[a-f]{2}"));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = testing::random_walk(**grammar, seed, 100).text;
    EXPECT_EQ(text.size(), 6U) << text;
    EXPECT_EQ(text.find_first_not_of("0123456789"), 3U) << text;
  }
}

TEST(GrammarWalk, RollbackRestoresTheMask) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(Constraint::json_object());
  ASSERT_TRUE(grammar.ok());
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  std::vector<std::uint32_t> before(mask_words(testing::tiny_tokenizer().vocab_size()));
  std::vector<std::uint32_t> after = before;
  std::mt19937_64 random(1);
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(matcher->fill_mask(before).ok());
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < testing::tiny_tokenizer().vocab_size(); ++token)
      if (((before[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0)
        allowed.push_back(token);
    if (allowed.empty()) break;
    const std::int32_t token = allowed[random() % allowed.size()];
    ASSERT_TRUE(matcher->accept(token).ok());
    ASSERT_TRUE(matcher->rollback(1).ok());
    ASSERT_TRUE(matcher->fill_mask(after).ok());
    EXPECT_EQ(before, after);
    ASSERT_TRUE(matcher->accept(token).ok());
  }
}

TEST(GrammarWalk, GrammarsThatNameDifferentTokensShareNoMasks) {
  // Two grammars that differ only in the id of their token.
  const std::int32_t first = *testing::tiny_tokenizer().id_of("<tool_call>");
  const std::int32_t second = *testing::tiny_tokenizer().id_of("</tool_call>");
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  for (const std::int32_t token : {first, second}) {
    const auto grammar = compiler.compile(
        Constraint::ebnf(fmt::format("root ::= \"a\" rest\nrest ::= Token({})", token)));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    testing::expect_accept_agrees_with_mask(**grammar, 1);
  }
}

TEST(GrammarWalk, ForcedTokensAllowExactlyOneToken) {
  const std::vector<std::int32_t> tokens{7, 40, 7};
  const auto grammar = forced_tokens(tokens);
  const std::unique_ptr<Matcher> matcher = *grammar->start();
  std::vector<std::uint32_t> mask(2);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_FALSE(matcher->can_end());
    ASSERT_TRUE(matcher->fill_mask(mask).ok());
    EXPECT_EQ(mask, tokens[i] == 7 ? (std::vector<std::uint32_t>{1U << 7U, 0U})
                                   : (std::vector<std::uint32_t>{0U, 1U << 8U}));
    EXPECT_FALSE(matcher->accept(8).ok());
    ASSERT_TRUE(matcher->accept(tokens[i]).ok());
  }
  EXPECT_TRUE(matcher->can_end());
  ASSERT_TRUE(matcher->fill_mask(mask).ok());
  EXPECT_EQ(mask, (std::vector<std::uint32_t>{0U, 0U}));
  EXPECT_FALSE(matcher->accept(7).ok());
  ASSERT_TRUE(matcher->rollback(2).ok());
  EXPECT_TRUE(matcher->accept(40).ok());
  const auto beyond = forced_tokens({64});
  const std::unique_ptr<Matcher> outside = *beyond->start();
  EXPECT_FALSE(outside->fill_mask(mask).ok());
}

TEST(GrammarWalk, ARefusedTokenLeavesTheStateUnchanged) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(Constraint::choice({"yes"}));
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  const std::int32_t no = (*testing::tiny_tokenizer().encode("no"))[0];
  EXPECT_EQ(matcher->accept(no).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(matcher->accept(*testing::tiny_tokenizer().id_of("<|user|>")).error().code,
            ErrorCode::invalid_argument);
  EXPECT_FALSE(matcher->can_end());
  const std::vector<std::int32_t> yes = *testing::tiny_tokenizer().encode("yes");
  for (const std::int32_t token : yes) {
    const Status status = matcher->accept(token);
    EXPECT_TRUE(status.ok()) << testing::tiny_tokenizer().token_bytes(token) << ": "
                             << status.error().message;
  }
  EXPECT_TRUE(matcher->can_end());
}

}  // namespace
}  // namespace koho
