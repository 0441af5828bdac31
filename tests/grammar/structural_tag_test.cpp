// SPDX-License-Identifier: Apache-2.0
// Structural tags as clients send them: which texts they allow, and which tags are refused with
// which path.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/grammar_compiler.h"

namespace koho {
namespace {

const Tokenizer& tiny_tokenizer() {
  static const Result<Tokenizer> tokenizer =
      Tokenizer::load(KOHO_SOURCE_DIR "/models/tiny/tokenizer.json");
  return *tokenizer;
}

GrammarCompiler& compiler() {
  static GrammarLimits limits = [] {
    GrammarLimits patient;  // a loaded machine must not reach them
    patient.compile_us_max = 60'000'000;
    patient.step_us_max = 10'000'000;
    return patient;
  }();
  static GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), limits);
  return compiler;
}

std::string tag(const std::string& format) {
  return R"({"type":"structural_tag","format":)" + format + "}";
}

std::string refusal(const std::string& text) {
  const auto grammar = compiler().compile(Constraint::structural_tag(text));
  return grammar.ok() ? "accepted" : grammar.error().message;
}

/// "whole": the text is complete; "part": it is a prefix; "no": a token of it is refused.
std::string verdict(const std::string& structural_tag, const std::string& text) {
  const auto grammar = compiler().compile(Constraint::structural_tag(structural_tag));
  if (!grammar.ok()) return grammar.error().message;
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  const std::vector<std::int32_t> tokens = *tiny_tokenizer().encode(text);
  for (const std::int32_t token : tokens)
    if (!matcher->accept(token).ok()) return "no";
  return matcher->can_end() ? "whole" : "part";
}

constexpr const char* kWeather =
    R"({"type":"triggered_tags","triggers":["<function="],"excludes":[],"at_least_one":false,)"
    R"("stop_after_first":false,"tags":[{"type":"tag","begin":"<function=weather>","content":)"
    R"({"type":"json_schema","style":"json","any_order":false,"max_whitespace_cnt":null,)"
    R"("json_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}},)"
    R"("end":"</function>"}]})";

TEST(StructuralTag, TagsMayAppearInFreeText) {
  const std::string weather = tag(kWeather);
  EXPECT_EQ(verdict(weather, "I just talk."), "whole");
  EXPECT_EQ(verdict(weather, R"(Well. <function=weather>{"city":"Rome"}</function> There.)"),
            "whole");
  EXPECT_EQ(verdict(weather, R"(Well. <function=weather>{"city":"Rome"})"), "part");
  EXPECT_EQ(verdict(weather, R"(<function=weather>{"city":7})"), "no");
  EXPECT_EQ(verdict(weather, R"(<function=weather>{"country":)"), "no");
  EXPECT_EQ(verdict(weather, "<function=time>"), "no");
}

TEST(StructuralTag, TheOlderFormGivesTheSameGrammar) {
  const std::string older =
      R"({"type":"structural_tag","triggers":["<function="],"structures":[{"begin":"<function=f>",)"
      R"("schema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},)"
      R"("end":"</function>"}]})";
  EXPECT_EQ(verdict(older, "Nothing."), "whole");
  EXPECT_EQ(verdict(older, R"(<function=f>{"n": 3}</function> and <function=f>{"n":4}</function>)"),
            "whole");
  EXPECT_EQ(verdict(older, R"(<function=f>{"n":"three)"), "no");
}

TEST(StructuralTag, FormatsCombine) {
  const std::string plan =
      tag(R"({"type":"sequence","elements":[{"type":"const_string","value":"Plan: "},)"
          R"({"type":"or","elements":[{"type":"regex","pattern":"[a-c]{2}"},)"
          R"({"type":"grammar","grammar":"root ::= \"none\""}]},)"
          R"({"type":"optional","content":{"type":"const_string","value":"!"}},)"
          R"({"type":"repeat","min":1,"max":2,"content":{"type":"const_string","value":"?"}}]})");
  EXPECT_EQ(verdict(plan, "Plan: ab!?"), "whole");
  EXPECT_EQ(verdict(plan, "Plan: none??"), "whole");
  EXPECT_EQ(verdict(plan, "Plan: none"), "part");
  EXPECT_EQ(verdict(plan, "Plan: none???"), "no");
  EXPECT_EQ(verdict(plan, "Plan: ad"), "no");
  const std::string list =
      tag(R"({"type":"tags_with_separator","separator":", ","at_least_one":true,"tags":[)"
          R"({"type":"tag","begin":"<a>","content":{"type":"any_text"},"end":["</a>","</b>"]}]})");
  EXPECT_EQ(verdict(list, "<a>one</a>, <a>two</b>"), "whole");
  EXPECT_EQ(verdict(list, "one"), "no");
  EXPECT_EQ(verdict(list, "<a>one</a>; "), "no");
  const std::string star = tag(
      R"({"type":"plus","content":{"type":"star","content":{"type":"const_string","value":"ab"}}})");
  EXPECT_EQ(verdict(star, "ababab"), "whole");
  EXPECT_EQ(verdict(star, "aba"), "part");
  const std::string dispatch = tag(
      R"({"type":"dispatch","loop":true,"rules":[["#",{"type":"const_string","value":"1;"}]]})");
  EXPECT_EQ(verdict(dispatch, "a #1; b #1;"), "whole");
  EXPECT_EQ(verdict(dispatch, "a #2"), "no");
}

TEST(StructuralTag, TextExcludesControlTokens) {
  const std::vector<std::string> tags{
      tag(kWeather), tag(R"({"type":"any_text"})"),
      tag(R"({"type":"any_text","excludes":["stop"]})"),
      tag(R"({"type":"dispatch","rules":[["#",{"type":"const_string","value":"1"}]]})"),
      tag(R"({"type":"tag","begin":"a","content":{"type":"any_text"},"end":"b"})")};
  const Tokenizer& tokenizer = tiny_tokenizer();
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  for (const std::string& text : tags) {
    const auto grammar = compiler().compile(Constraint::structural_tag(text));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
    for (const char* next : {"a", "x", " y"}) {
      ASSERT_TRUE(matcher->fill_mask(mask).ok());
      for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token)
        if (tokenizer.is_added(token)) {
          EXPECT_EQ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U, 0U)
              << tokenizer.token_bytes(token) << " in " << text;
        }
      EXPECT_FALSE(matcher->accept(*tokenizer.id_of("<|user|>")).ok());
      const std::vector<std::int32_t> tokens = *tokenizer.encode(next);
      for (const std::int32_t token : tokens)
        ASSERT_TRUE(matcher->accept(token).ok()) << next << " in " << text;
    }
  }
}

TEST(StructuralTag, AFaultyTagIsRefusedWithItsPath) {
  struct Case {
    std::string text;
    std::string begins;
  };
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += R"({"type":"star","content":)";
  deep += R"({"type":"any_text"})" + std::string(500, '}');
  const std::vector<Case> cases{
      {"{", "invalid_grammar: structural_tag: "},
      {"[]", "invalid_grammar: $.type: "},
      {R"({"type":"text"})", "invalid_grammar: $.type: "},
      {R"({"type":"structural_tag"})", "invalid_grammar: $: "},
      {R"({"type":"structural_tag","structures":[],"triggers":["a"]})",
       "invalid_grammar: $.structures: "},
      {R"({"type":"structural_tag","structures":[{"begin":"a","end":"b"}],"triggers":[""]})",
       "invalid_grammar: $.triggers[0]: "},
      {R"({"type":"structural_tag","structures":[{"begin":"a"}],"triggers":["a"]})",
       "invalid_grammar: $.structures[0]: "},
      {tag("7"), "invalid_grammar: $.format: "},
      {tag(R"({"type":"nothing"})"), "invalid_grammar: $.format: the type \"nothing\""},
      {tag(R"({"type":"token","token":3})"), "invalid_grammar: $.format: the type \"token\""},
      {tag(R"({"type":"sequence","elements":[{"type":"regex"}]})"),
       "invalid_grammar: $.format.elements[0]: regex requires \"pattern\""},
      {tag(R"({"type":"sequence","elements":[]})"), "invalid_grammar: $.format.elements: "},
      {tag(R"({"type":"any_text","max_tokens":3})"), "invalid_grammar: $.format: \"max_tokens\""},
      {tag(R"({"type":"repeat","min":2,"max":-2,"content":{"type":"any_text"}})"),
       "invalid_grammar: $.format.max: "},
      {tag(R"({"type":"const_string","value":"a\u0000"})"), "invalid_grammar: $.format.value: "},
      {tag(R"({"type":"json_schema","json_schema":{"type":"array","uniqueItems":true}})"),
       "unsupported_schema: $.format.json_schema: $"},
      {tag(R"({"type":"json_schema","json_schema":{"type":"object"},"style":"glm_xml"})"),
       "invalid_grammar: $.format.style: "},
      {tag(R"({"type":"triggered_tags","triggers":["<"],"tags":[{"type":"any_text"}]})"),
       "invalid_grammar: $.format.tags[0]: "},
      {tag(R"({"type":"dispatch","rules":[["a"]]})"), "invalid_grammar: $.format.rules[0]: "},
      {tag(R"({"type":"grammar","grammar":"root ::= missing"})"), "invalid_grammar: "},
      {tag(deep), "invalid_grammar: structural_tag: "}};
  for (const Case& one : cases) {
    const std::string found = refusal(one.text);
    EXPECT_TRUE(found.starts_with(one.begins)) << one.text.substr(0, 200) << "\n" << found;
  }
  const std::string large =
      tag(R"({"type":"const_string","value":")" + std::string(70'000, 'a') + "\"}");
  EXPECT_TRUE(refusal(large).starts_with("grammar_too_complex: "));
}

}  // namespace
}  // namespace koho
