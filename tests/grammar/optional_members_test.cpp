// SPDX-License-Identifier: Apache-2.0
// Objects of optional members: which texts are allowed, and that many members cost a step no more
// than few (third_party/xgrammar/changes.cmake).
#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "grammar/constraint.h"
#include "grammar/grammar_compiler.h"
#include "grammar_accepts.h"
#include "tests/support/thread_time.h"

namespace koho {
namespace {

using testing::thread_us;
using testing::tiny_tokenizer;

/// Keys that begin alike, that end where another goes on, with escapes, beyond ASCII, and empty.
const std::vector<std::string> kKeys = {"ab", "a", "abc", "b", "a\"", "\xc3\xa4", "", "abd"};

std::string quoted(const std::string& text) {
  return json_string(text);
}

/// An object of these `keys`, each an integer.
std::string schema_of(const std::vector<std::string>& keys,
                      const std::vector<std::string>& required,
                      const std::string& more = "") {
  std::string text = R"({"type":"object","properties":{)";
  for (const std::string& key : keys)
    text += (text.back() == '{' ? "" : ",") + quoted(key) + R"(:{"type":"integer"})";
  text += R"(},"required":[)";
  for (const std::string& key : required) text += (text.back() == '[' ? "" : ",") + quoted(key);
  return text + "]" + more + "}";
}

std::string object_of(const std::vector<std::string>& keys) {
  std::string text = "{";
  for (const std::string& key : keys)
    text += (text.size() == 1 ? "" : ", ") + quoted(key) + ": " + std::to_string(text.size());
  return text + "}";
}

class OptionalMembers : public ::testing::Test {
 protected:
  std::shared_ptr<const CompiledGrammar> compile(const std::string& schema) {
    const auto grammar = compiler_.compile(Constraint::json_schema(schema));
    EXPECT_TRUE(grammar.ok()) << schema << grammar.error().message;
    return *grammar;
  }
  /// The least time of a mask after `text`.
  double mask_us(const std::string& schema, const std::string& text) {
    const auto grammar = compile(schema);
    const auto matcher = grammar->start();
    const Result<std::vector<std::int32_t>> tokens = tiny_tokenizer().encode(text);
    for (const std::int32_t token : *tokens) EXPECT_TRUE((*matcher)->accept(token).ok()) << text;
    std::vector<std::uint32_t> mask(mask_words(tiny_tokenizer().vocab_size()));
    double best = 1e9;
    for (int i = 0; i < 20; ++i) {
      const double begin = thread_us();
      EXPECT_TRUE((*matcher)->fill_mask(mask).ok());
      best = std::min(best, thread_us() - begin);
    }
    return best;
  }

  GrammarCompiler compiler_{tiny_tokenizer(), tiny_tokenizer().vocab_size()};
};

/// The keys whose bits are set.
std::vector<std::string> keys_of(unsigned bits) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kKeys.size(); ++i)
    if ((bits >> i) % 2 == 1) keys.push_back(kKeys[i]);
  return keys;
}

TEST_F(OptionalMembers, AnyOfThemMayBeLeftOutAndNoneOfTheRequired) {
  for (const unsigned required : {0U, 1U, 0x80U, 0x12U, 0xC3U, 0xFFU, 0x40U}) {
    const auto grammar = compile(schema_of(kKeys, keys_of(required)));
    for (unsigned members = 0; members < 1U << kKeys.size(); ++members)
      EXPECT_EQ(testing::accepts(*grammar, object_of(keys_of(members))),
                (members & required) == required)
          << required << object_of(keys_of(members));
  }
}

TEST_F(OptionalMembers, TheirNumberIsBounded) {
  for (const auto& [least, most] :
       {std::pair{0, 1}, {0, 3}, {1, 8}, {2, 2}, {3, 5}, {5, 9}, {8, 8}, {7, 8}, {2, 20}})
    for (const unsigned required : {0U, 0x12U, 0x80U}) {
      if (std::popcount(required) > most) continue;
      const auto grammar =
          compile(schema_of(kKeys, keys_of(required),
                            fmt::format(R"(,"minProperties":{},"maxProperties":{})", least, most)));
      for (unsigned members = 0; members < 1U << kKeys.size(); ++members)
        EXPECT_EQ(testing::accepts(*grammar, object_of(keys_of(members))),
                  (members & required) == required && std::popcount(members) >= least &&
                      std::popcount(members) <= most)
            << least << ' ' << most << ' ' << required << object_of(keys_of(members));
    }
}

TEST_F(OptionalMembers, ComeInTheSchemasOrderAndOnce) {
  const auto grammar = compile(schema_of(kKeys, {}));
  for (const std::string& first : kKeys)
    for (const std::string& second : kKeys) {
      const bool in_order =
          std::ranges::find(kKeys, first) < std::ranges::find(kKeys, second);  // never of itself
      EXPECT_EQ(testing::accepts(*grammar, object_of({first, second})), in_order)
          << object_of({first, second});
    }
  for (const char* text :
       {R"({"ab": 1,})", R"({,"ab": 1})", R"({"ab": 1 "a": 2})", R"({"ac": 1})", R"({"abcd": 1})",
        R"({"ab": "1"})", R"({"ab" 1})", R"({"ab": 1, "ab)", R"({"a)", R"({"ab": 1, })"})
    EXPECT_FALSE(testing::accepts(*grammar, text)) << text;
  for (const char* text : {"{}", "{ }", R"({ "ab" : 1 , "abc":2 })", "{\n\t\"b\": -7\n}"})
    EXPECT_TRUE(testing::accepts(*grammar, text)) << text;
}

/// Each member led through all later ones: a mask within the first's text took 30 times as long
/// with 100 members as with one.
TEST_F(OptionalMembers, CostAStepNoMoreWhereThereAreMany) {
  const auto schema = [](int count) {
    std::string text = R"({"type":"object","properties":{)";
    for (int i = 0; i < count; ++i)
      text += (i == 0 ? "\"key" : ",\"key") + std::to_string(i) + R"(":{"type":"string"})";
    return text + "}}";
  };
  const auto members = [](int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i)
      text += (i == 0 ? "\"key" : ", \"key") + std::to_string(i) + R"(": "text")";
    return text.substr(0, text.size() - 1);  // within the last text
  };
  const double one = mask_us(schema(1), members(1));
  const double first = mask_us(schema(100), members(1));
  const double last = mask_us(schema(100), members(99));
  std::printf(
      "a mask in a text: %.1f us of one member, %.1f of the first of 100, %.1f of the 99th\n", one,
      first, last);
  EXPECT_LT(first, 4 * one);
  EXPECT_LT(last, 4 * one);
}

/// White space of an empty tuple was that before its items and that after them in every split.
TEST_F(OptionalMembers, ATuplesFirstItemCostsNoMoreThanAnyArrays) {
  const std::string tuple = R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})";
  const double list_us = mask_us(R"({"type":"array","items":{"type":"null"}})", "[");
  const double tuple_us = mask_us(tuple, "[");
  std::printf("a mask after [: %.1f us of a list, %.1f us of a tuple\n", list_us, tuple_us);
  EXPECT_LT(tuple_us, 4 * list_us);
  const auto grammar = compile(tuple);
  for (const char* text : {"[]", "[ ]", "[ \n ]", "[null]", "[ null ]"})
    EXPECT_TRUE(testing::accepts(*grammar, text)) << text;
  for (const char* text : {"[null,]", "[,]", "[null,null]", "[", "[null"})
    EXPECT_FALSE(testing::accepts(*grammar, text)) << text;
}

}  // namespace
}  // namespace koho
