// SPDX-License-Identifier: Apache-2.0
// A table of grammar bombs: small texts of a client that stand for much work. Each compilation ends
// within its limits, in a grammar whose first tokens are cheap or in the refusal that the table
// names; after each the compiler compiles what others ask for.
#include <chrono>
#include <ctime>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "grammar/grammar_compiler.h"
#include "grammar_walk.h"

namespace koho {
namespace {

enum class Outcome : std::uint8_t {
  accepted,
  refused,
  either  // what fits into the time limit depends on the machine
};

struct Bomb {
  const char* name;
  Constraint constraint;
  Outcome outcome;
  ErrorReason reason = {};  // of a refusal that is no matter of time
};

void PrintTo(const Bomb& bomb, std::ostream* out) {
  *out << bomb.name;
}

std::string times(int count, const std::string& text) {
  std::string made;
  for (int i = 0; i < count; ++i) made += text;
  return made;
}

/// `write(i)` for each i, with commas between.
std::string list(int count, const std::function<std::string(int)>& write) {
  std::string made;
  for (int i = 0; i < count; ++i) made += (i == 0 ? "" : ",") + write(i);
  return made;
}

/// count times `open`, then `middle`, then count times `close`.
std::string nested(int count,
                   const std::string& open,
                   const std::string& middle,
                   const std::string& close) {
  return times(count, open) + middle + times(count, close);
}

Constraint schema(std::string text) {
  return Constraint::json_schema(std::move(text));
}

/// Each of `count` definitions is an object with two members of the next one: 2^count values.
std::string doubling(int count) {
  return R"({"$ref":"#/$defs/d0","$defs":{)" +
         list(
             count,
             [&](int i) {
               const std::string next = fmt::format(R"({{"$ref":"#/$defs/d{}"}})", i + 1);
               return fmt::format(
                   R"("d{}":{{"type":"object","properties":{{"a":{},"b":{}}},"required":["a","b"]}})",
                   i, next, next);
             }) +
         fmt::format(R"(,"d{}":{{"type":"null"}}}}}})", count);
}

/// `count` parts under `keyword`, each an anyOf of `options` objects.
std::string product(const std::string& keyword, int count, int options) {
  return "{\"" + keyword + "\":[" +
         list(
             count,
             [&](int i) {
               return R"({"anyOf":[)" +
                      list(
                          options,
                          [&](int k) {
                            return fmt::format(
                                R"({{"type":"object","properties":{{"p{}":{{"const":{}}}}},"required":["p{}"]}})",
                                i, k, i);
                          }) +
                      "]}";
             }) +
         "]}";
}

/// A schema of 8,000 values below `count` objects, and a reference to each of these.
std::string references_to_levels(int count) {
  std::string pointer = "#";
  return R"({"type":"array","prefixItems":[)" +
         list(count, [&](int) { return R"({"$ref":")" + (pointer += "/x") + "\"}"; }) + "]," +
         times(count, R"("x":{)") + R"("enum":[)" +
         list(8000, [](int) { return std::string("0"); }) + "]" + times(count, "}") + "}";
}

std::string members(int count, const std::string& value, bool required) {
  const auto name = [](int i) { return fmt::format("\"member_{}\"", i); };
  return R"({"type":"object","properties":{)" +
         list(count, [&](int i) { return name(i) + ":" + value; }) + R"(},"required":[)" +
         (required ? list(count, name) : "") + "]}";
}

/// 64 KiB: each of 880 arguments refers to the 680 definitions.
std::string arguments_with_definitions() {
  const auto reference = [](int i) { return fmt::format(R"({{"$ref":"#/$defs/d{}"}})", i % 680); };
  return R"({"type":"object","properties":{)" +
         list(880, [&](int i) { return fmt::format("\"p{}\":{}", i, reference(i)); }) +
         R"(},"$defs":{)" +
         list(680,
              [&](int i) {
                return fmt::format(R"("d{}":{{"type":"array","items":{}}})", i, reference(i + 1));
              }) +
         "}}";
}

std::vector<Bomb> shapes() {
  using enum Outcome;
  const std::string text = R"({"type":"string"})";
  return {
      {"depth_64", schema(nested(63, R"({"type":"array","items":)", "{}", "}")), either},
      {"depth_65", schema(nested(65, R"({"type":"array","items":)", "{}", "}")), refused,
       kGrammarTooComplex},
      {"depth_30000", schema(nested(30'000, R"({"items":)", "{}", "}")), refused,
       kGrammarTooComplex},
      {"depth_of_lists_30000", schema(nested(30'000, "[", "", "]")), refused, kGrammarTooComplex},
      {"any_of_in_any_of", schema(nested(60, R"({"anyOf":[{"type":"null"},)", "{}", "]}")), either},
      {"not_in_not", schema(nested(60, R"({"not":)", "{}", "}")), either},
      {"text_of_64_kb", schema(R"({"description":")" + std::string(70'000, 'a') + "\"}"), refused,
       kGrammarTooComplex},
      {"enum_of_4000",
       schema(R"({"enum":[)" + list(4000, [](int i) { return fmt::format("\"value {}\"", i); }) +
              "]}"),
       either},
      {"enum_of_70000",
       schema(R"({"enum":[)" + list(70'000, [](int i) { return std::to_string(i); }) + "]}"),
       refused, kGrammarTooComplex},
      {"enum_with_one_text_of_50_kb",
       schema(R"({"enum":["a",")" + std::string(50'000, 'b') + "\"]}"), either},
      {"refs_that_double_20", schema(doubling(20)), accepted},
      {"refs_that_double_60", schema(doubling(60)), either},
      {"refs_to_all_levels", schema(references_to_levels(50)), refused, kGrammarTooComplex},
      {"ref_to_itself", schema(R"({"$ref":"#"})"), refused, kUnsatisfiableSchema},
      {"refs_in_a_ring",
       schema(
           R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})"),
       refused, kUnsatisfiableSchema},
      {"ring_through_all_of",
       schema(
           R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"type":"object"}]}},"$ref":"#/$defs/a"})"),
       either},
      {"tree_of_itself",
       schema(R"({"type":"object","properties":{"l":{"$ref":"#"},"r":{"$ref":"#"}}})"), accepted},
      {"tree_that_never_ends",
       schema(R"({"type":"object","properties":{"l":{"$ref":"#"}},"required":["l"]})"), refused,
       kUnsatisfiableSchema},
      {"all_of_8_any_ofs_of_8", schema(product("allOf", 8, 8)), either},
      {"all_of_20_any_ofs_of_20", schema(product("allOf", 20, 20)), either},
      {"any_of_30_any_ofs_of_30", schema(product("anyOf", 30, 30)), either},
      {"one_of_300",
       schema(R"({"oneOf":[)" +
              list(300, [](int i) { return fmt::format(R"({{"const":{}}})", i); }) + "]}"),
       either},
      {"optional_members_200", schema(members(200, "{\"type\":\"integer\"}", false)), either},
      {"optional_members_1000", schema(members(1000, "{}", false)), either},
      {"required_members_1000", schema(members(1000, text, true)), either},
      {"optional_members_in_each_other",
       schema(nested(20, R"({"type":"object","properties":{"a":{"type":"null"},"b":)", "{}", "}}")),
       either},
      {"names_of_1000_letters",
       schema(R"({"type":"object","properties":{)" +
              list(50,
                   [](int i) {
                     return '"' + std::string(1000, 'n') + std::to_string(i) + R"(":{})";
                   }) +
              "}}"),
       either},
  };
}

std::vector<Bomb> bounds() {
  using enum Outcome;
  const std::string text = R"({"type":"string"})";
  return {
      {"tuple_of_2000",
       schema(R"({"type":"array","prefixItems":[)" + list(2000, [&](int) { return text; }) + "]}"),
       either},
      {"min_items_1000000",
       schema(R"({"type":"array","items":{"type":"integer"},"minItems":1000000})"), either},
      {"max_items_1000000000",
       schema(R"({"type":"array","items":{"type":"integer"},"maxItems":1000000000})"), either},
      {"lists_of_lists_of_1000",
       schema(nested(6, R"({"type":"array","minItems":1000,"maxItems":1000,"items":)", "{}", "}")),
       either},
      {"min_length_1000000000", schema(R"({"type":"string","minLength":1000000000})"), either},
      {"length_100_to_100000", schema(R"({"type":"string","minLength":100,"maxLength":100000})"),
       accepted},
      {"integers_to_10_to_the_18",
       schema(R"({"type":"integer","minimum":-999999999999999999,"maximum":999999999999999999})"),
       either},
      {"multiples_of_1024", schema(R"({"type":"integer","multipleOf":1024})"), either},
      {"multiples_of_1000003", schema(R"({"type":"integer","multipleOf":1000003})"), refused,
       kUnsupportedSchema},
      {"unique_items_of_8",
       schema(R"({"type":"array","items":{"enum":[1,2,3,4,5,6,7,8]},"uniqueItems":true})"), either},
      {"unique_items_of_9",
       schema(R"({"type":"array","items":{"enum":[1,2,3,4,5,6,7,8,9]},"uniqueItems":true})"),
       refused, kUnsupportedSchema},
      {"min_properties_of_200",
       schema(R"({"minProperties":100,)" + members(200, "{\"type\":\"null\"}", false).substr(1)),
       either},
      {"patterns_of_quantifiers",
       schema(R"({"type":"string","pattern":"^((a{1,1000}){1,1000}){1,1000}$"})"), either},
      {"pattern_30000_brackets",
       schema(R"({"type":"string","pattern":")" + nested(30'000, "(", "a", ")") + "\"}"), refused,
       kGrammarTooComplex},
      {"names_30000_brackets",
       schema(R"({"type":"object","patternProperties":{")" + nested(30'000, "(", "a", ")") +
              R"(":{}}})"),
       refused, kGrammarTooComplex},
      {"pattern_without_a_word_of_60_kb",
       schema(R"({"type":"string","pattern":"^(?!)" + std::string(60'000, 'a') + ").*$\"}"),
       refused, kUnsupportedSchema},
      {"pattern_that_backtracks", schema(R"({"type":"string","pattern":"^(a+)+$"})"), accepted},
      {"pattern_of_words_500", schema(R"({"type":"string","pattern":"^(( ?[a-z]+){1,500})$"})"),
       either},
      {"patterns_1000",
       schema(members(300, R"({"type":"string","pattern":"^[a-z]{1,40}@[a-z]+$"})", true)), either},
  };
}

std::vector<Bomb> expressions() {
  using enum Outcome;
  const auto regex = [](std::string text) { return Constraint::regex(std::move(text)); };
  return {
      {"regex_30000_brackets", regex(nested(30'000, "(", "a", ")")), refused, kGrammarTooComplex},
      {"regex_brackets_beside_others", regex(nested(8'000, "([)]", "a", ")")), refused,
       kGrammarTooComplex},
      {"regex_60_brackets_with_stars", regex(nested(60, "(", "a", ")*")), either},
      {"regex_empty_loop", regex("(a*)*"), accepted},
      {"regex_empty_loops_in_each_other", regex("((a?)*(b?)*)*"), accepted},
      {"regex_quantifier_on_quantifier", regex("(((a{99}){99}){99}){99}"), either},
      {"regex_999999_repetitions", regex("[ab]{1,999999}c"), either},
      {"regex_dots_that_count", regex("(.*a.{200})"), either},
      {"regex_all_suffixes", regex("(a|b)*a(a|b){30}"), either},
      {"regex_5000_words", regex(list(5000, [](int i) { return "w" + std::to_string(i); })),
       either},
      {"regex_alternatives_5000", regex("(" + times(5000, "ab|") + "c)"), either},
      {"regex_class_of_60_kb", regex("[" + times(20'000, "a-z") + "]+"), either},
      {"regex_unicode_classes", regex(R"((\p{L}+\p{N}*){1,50})"), either},
      {"regex_back_reference", regex(R"((a+)\1)"), either},
      {"regex_look_ahead_in_the_middle", regex("a(?=(b+)+c)d"), refused, kUnsupportedSchema},
      {"regex_of_64_kb", regex(std::string(70'000, 'a')), refused, kGrammarTooComplex},
  };
}

std::vector<Bomb> grammars() {
  using enum Outcome;
  const auto ebnf = [](std::string text) { return Constraint::ebnf(std::move(text)); };
  return {
      {"ebnf_left_recursion", ebnf("root ::= root \"a\" | \"a\""), either},
      {"ebnf_two_in_a_ring", ebnf("root ::= a\na ::= b\nb ::= a"), refused, kUnsatisfiableSchema},
      {"ebnf_empty_ring", ebnf("root ::= a root | \"\"\na ::= \"\" | a a"), either},
      {"ebnf_repetition_of_itself", ebnf("root ::= root{2,}"), refused, kUnsatisfiableSchema},
      {"ebnf_repetitions_in_a_ring", ebnf("root ::= \"x\"\na ::= b{1,2}\nb ::= a{2}"), accepted},
      {"ebnf_3000_repetitions", ebnf([] {
         std::string made = "root ::= r0{1,2}\n";
         for (int i = 0; i < 3000; ++i) made += fmt::format("r{} ::= r{}{{1,2}}\n", i, i + 1);
         return made + "r3000 ::= \"z\"";
       }()),
       either},
      {"ebnf_ambiguous", ebnf("root ::= root root | \"a\" | \"b\""), either},
      {"ebnf_ambiguous_and_empty", ebnf("root ::= root root root | \"a\" | \"\""), either},
      {"ebnf_2000_rules",
       ebnf("root ::= r0\n" +
            [] {
              std::string made;
              for (int i = 0; i < 2000; ++i)
                made += fmt::format("r{} ::= \"x\" r{} | \"y\"\n", i, i + 1);
              return made + "r2000 ::= \"z\"";
            }()),
       either},
      {"ebnf_rules_that_double",
       ebnf("root ::= r0\n" +
            [] {
              std::string made;
              for (int i = 0; i < 40; ++i) made += fmt::format("r{0} ::= r{1} r{1}\n", i, i + 1);
              return made + "r40 ::= \"a\" | \"\"";
            }()),
       either},
      {"ebnf_repetition_of_a_million", ebnf("root ::= (\"a\" | \"b\" \"c\"){1,1000000}"), either},
      {"ebnf_30000_brackets", ebnf("root ::= " + nested(30'000, "(", "\"a\"", ")")), refused,
       kGrammarTooComplex},
  };
}

std::vector<Bomb> tags_and_tools() {
  using enum Outcome;
  const auto tag = [](std::string text) { return Constraint::structural_tag(std::move(text)); };
  return {
      {"tag_with_1000_triggers",
       tag(R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":[)" +
           list(1000, [](int i) { return fmt::format("\"<t{}\"", i); }) +
           R"(],"tags":[{"begin":"<t1>","content":{"type":"any_text"},"end":"</t>"}]}})"),
       either},
      {"tag_in_tag",
       tag(R"({"type":"structural_tag","format":)" +
           nested(60, R"({"type":"tag","begin":"<a>","end":"</a>","content":)",
                  R"({"type":"any_text"})", "}") +
           "}"),
       either},
      {"choices_1000", Constraint::choice([] {
         std::vector<std::string> made;
         for (int i = 0; i < 1000; ++i) made.push_back(times(8, "choice ") + std::to_string(i));
         return made;
       }()),
       either},
      {"choices_1001", Constraint::choice([] {
         std::vector<std::string> made;
         for (int i = 0; i < 1001; ++i) made.push_back(std::to_string(i));
         return made;
       }()),
       refused, kGrammarTooComplex},
      {"tools_128_with_40_members",
       Constraint::tool_calls(
           [] {
             std::vector<ToolGrammar> made;
             for (int i = 0; i < 128; ++i)
               made.push_back(
                   {fmt::format("t{}", i), members(40, "{\"type\":\"string\"}", false), true});
             return made;
           }(),
           Constraint::Calls::at_least_one),
       either},
      {"tools_whose_arguments_share_definitions",
       Constraint::tool_calls(
           std::vector<ToolGrammar>(1, {"t", arguments_with_definitions(), true}),
           Constraint::Calls::at_least_one),
       refused, kGrammarTooComplex},
      {"free_tools_whose_arguments_share_definitions",
       Constraint::tool_calls(
           [] {
             std::vector<ToolGrammar> made;
             for (int i = 0; i < 16; ++i)
               made.push_back({fmt::format("t{}", i), arguments_with_definitions(), false});
             return made;
           }(),
           Constraint::Calls::at_least_one),
       accepted},
      {"tools_129",
       Constraint::tool_calls(
           [] {
             std::vector<ToolGrammar> made;
             for (int i = 0; i < 129; ++i)
               made.push_back({fmt::format("t{}", i), R"({"type":"object"})", true});
             return made;
           }(),
           Constraint::Calls::at_least_one),
       refused, kGrammarTooComplex},
      {"tool_that_never_ends",
       Constraint::tool_calls(
           {{"t", R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", true}},
           Constraint::Calls::exactly_one),
       refused, kUnsatisfiableSchema},
  };
}

GrammarCompiler& compiler() {
  static GrammarCompiler shared(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  return shared;
}

class GrammarBomb : public ::testing::TestWithParam<Bomb> {};

TEST_P(GrammarBomb, EndsWithinItsLimits) {
  const Bomb& bomb = GetParam();
  const GrammarLimits limits;
  ASSERT_TRUE(compiler().compile(Constraint::choice({"x"})).ok());  // reads the vocabulary
  const std::clock_t before = std::clock();  // processor time: the limits are, too
  const auto grammar = compiler().compile(bomb.constraint);
  const auto took_us =
      static_cast<std::int64_t>(1e6 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
  // What reads schemas looks at the clock before each, xgrammar when it allocates. Then what was
  // made is freed.
  EXPECT_LE(took_us, limits.compile_us_max * 3 / 2);
  if (bomb.outcome != Outcome::either) {
    EXPECT_EQ(grammar.ok(), bomb.outcome == Outcome::accepted)
        << (grammar.ok() ? "" : grammar.error().message);
  }
  if (grammar.ok()) {
    EXPECT_LE((*grammar)->bytes(), limits.grammar_bytes_max);
    const std::int64_t begin = thread_ns();
    const testing::Walk walk = testing::random_walk(**grammar, 7, 64);
    EXPECT_LE((thread_ns() - begin) / 1000, 64 * limits.step_us_max / 2) << walk.text;
  } else {
    EXPECT_TRUE(is_grammar_error(grammar.error())) << grammar.error().message;
    if (bomb.reason != ErrorReason{}) {
      EXPECT_EQ(grammar.error().reason, bomb.reason) << grammar.error().message;
    }
    EXPECT_LT(grammar.error().message.size(), 1000U);
  }
  EXPECT_TRUE(compiler().compile(Constraint::choice({"yes", "no", bomb.name})).ok());
}

std::string name_of(const ::testing::TestParamInfo<Bomb>& one) {
  return one.param.name;
}

INSTANTIATE_TEST_SUITE_P(Shape, GrammarBomb, ::testing::ValuesIn(shapes()), name_of);
INSTANTIATE_TEST_SUITE_P(Bound, GrammarBomb, ::testing::ValuesIn(bounds()), name_of);
INSTANTIATE_TEST_SUITE_P(Regex, GrammarBomb, ::testing::ValuesIn(expressions()), name_of);
INSTANTIATE_TEST_SUITE_P(Ebnf, GrammarBomb, ::testing::ValuesIn(grammars()), name_of);
INSTANTIATE_TEST_SUITE_P(Tag, GrammarBomb, ::testing::ValuesIn(tags_and_tools()), name_of);

}  // namespace
}  // namespace koho
