// SPDX-License-Identifier: Apache-2.0
// Grammars of tool calls: strict and other tools, forced and optional calls, calls or a response
// format.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "grammar/grammar_compiler.h"
#include "grammar_walk.h"

namespace koho {
namespace {

TEST(ToolGrammar, AcceptAgreesWithTheMaskForToolsInAnyOrder) {
  using Calls = Constraint::Calls;
  const std::vector<ToolGrammar> tools{
      {"get_weather",
       R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]})",
       true},
      {"get_time", R"({"type":"object","properties":{}})", true},
      {"get", R"({"type":"object"})", false},
      {"ping", "", true}};
  // One compiler for all grammars: no grammar may leak into another.
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  std::vector<std::size_t> order{0, 1, 2, 3};
  std::uint64_t seed = 0;
  do {
    for (std::size_t count = 1; count <= order.size(); ++count) {
      // Visit each choice of the first `count` tools once: the rest must be sorted.
      if (!std::is_sorted(order.begin() + static_cast<std::ptrdiff_t>(count), order.end()))
        continue;
      std::vector<ToolGrammar> chosen;
      for (std::size_t i = 0; i < count; ++i) chosen.push_back(tools[order[i]]);
      for (const Calls calls : {Calls::at_least_one, Calls::exactly_one, Calls::when_called}) {
        Constraint constraint = Constraint::tool_calls(chosen, calls);
        constraint.one_call = seed % 2 == 0;
        SCOPED_TRACE(fmt::format("tools {} (the first {}), calls {}, one {}", fmt::join(order, " "),
                                 count, static_cast<int>(calls), constraint.one_call));
        const auto grammar = compiler.compile(constraint);
        ASSERT_TRUE(grammar.ok()) << grammar.error().message;
        testing::expect_accept_agrees_with_mask(**grammar, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  } while (std::ranges::next_permutation(order).found);
}

TEST(ToolGrammar, NothingFollowsASingleCall) {
  std::vector<ToolGrammar> tools{{"get_time", "", true}};
  for (int i = 0; i < 300; ++i) tools.push_back({"tool" + std::to_string(i), "", false});
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  Constraint constraint = Constraint::tool_calls(tools, Constraint::Calls::when_called);
  constraint.one_call = true;
  const auto grammar = compiler.compile(constraint);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const auto follow = [&](std::string_view text) {
    std::unique_ptr<Matcher> matcher = *(*grammar)->start();
    const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode_with_special(text);
    for (const std::int32_t token : ids)
      if (!matcher->accept(token).ok()) return std::unique_ptr<Matcher>();
    return matcher;
  };
  std::vector<std::uint32_t> mask(mask_words(testing::tiny_tokenizer().vocab_size()));
  for (const char* call :
       {"<tool_call>get_time</tool_call>", "Well. <tool_call>tool7</tool_call>",
        "<tool_call>tool299<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"}) {
    const std::unique_ptr<Matcher> matcher = follow(call);
    ASSERT_NE(matcher, nullptr) << call;
    ASSERT_TRUE(matcher->fill_mask(mask).ok());
    EXPECT_TRUE(matcher->can_end()) << call;
    EXPECT_TRUE(std::ranges::all_of(mask, [](std::uint32_t word) { return word == 0; })) << call;
  }
  ASSERT_NE(follow("Well."), nullptr);
  EXPECT_TRUE(follow("Well.")->can_end()) << "no call at all";
  EXPECT_EQ(follow("<tool_call>tool300</tool_call>"), nullptr) << "no such tool";
  EXPECT_EQ(follow("<tool_call>get_time<arg_key>"), nullptr) << "the tool takes no arguments";
}

TEST(ToolGrammar, WhiteSpaceOfArgumentsHasABound) {
  const GrammarLimits limits = testing::patient_limits();
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           limits);
  const std::vector<ToolGrammar> tools{
      {"f", R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}})",
       true}};
  const auto grammar =
      compiler.compile(Constraint::tool_calls(tools, Constraint::Calls::exactly_one));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const auto takes = [&](std::int32_t blanks) {
    const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
    const std::string call = "<tool_call>f<arg_key>a</arg_key><arg_value>[1" +
                             std::string(static_cast<std::size_t>(blanks), ' ') +
                             "]</arg_value></tool_call>";
    const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode_with_special(call);
    for (const std::int32_t token : ids)
      if (!matcher->accept(token).ok()) return false;
    return matcher->can_end();
  };
  EXPECT_TRUE(takes(0));
  EXPECT_TRUE(takes(limits.whitespace_max));
  EXPECT_FALSE(takes(limits.whitespace_max + 1));
}

TEST(ToolGrammar, AnAnswerFollowsAFormatOrCallsTools) {
  const std::string format =
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":5}},"required":["city"]})";
  const std::vector<ToolGrammar> tools{
      {"get_weather",
       R"({"type":"object","properties":{"days":{"type":"integer"}},"required":["days"]})", true},
      {"get", R"({"type":"object"})", false}};
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  for (const bool one_call : {false, true}) {
    Constraint calls = Constraint::tool_calls(tools, Constraint::Calls::instead_of_text);
    calls.one_call = one_call;
    const auto grammar =
        compiler.compile(Constraint::union_of({Constraint::json_schema(format), std::move(calls)}));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(seed);
      testing::expect_accept_agrees_with_mask(**grammar, seed);
      if (HasFatalFailure()) return;
    }
    /// 0: refused; 1: accepted, but incomplete; 2: accepted and complete.
    const auto follow = [&](std::string_view text) {
      const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
      const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode_with_special(text);
      for (const std::int32_t token : ids)
        if (!matcher->accept(token).ok()) return 0;
      return matcher->can_end() ? 2 : 1;
    };
    const std::string weather =
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>";
    const std::string other =
        "<tool_call>get<arg_key>a</arg_key><arg_value>b c</arg_value></tool_call>";
    EXPECT_EQ(follow(R"({"city": "Paris"})"), 2);
    EXPECT_EQ(follow(R"({"city": "Lisbon"})"), 0) << "too long";
    EXPECT_EQ(follow(weather), 2);
    EXPECT_EQ(follow(other), 2) << "free arguments";
    EXPECT_EQ(follow(weather + other), one_call ? 0 : 2);
    EXPECT_EQ(follow("<tool_call>get_weather"), 1);
    EXPECT_EQ(follow("<tool_call>get_weather<arg_key>days</arg_key><arg_value>many"), 0);
    EXPECT_EQ(follow("Well. " + weather), 0) << "other text";
    EXPECT_EQ(follow(R"({"city": "Paris"})" + weather), 0) << "both";
    EXPECT_EQ(follow(weather + R"({"city": "Paris"})"), 0) << "both";
  }
}

TEST(ToolGrammar, AForcedCallOfANonStrictToolCompilesWithAnySchema) {
  struct Case {
    std::string parameters;
    bool keeps_types;     // false: the arguments are free
    bool strict = false;  // a grammar can express all of it
  };
  const auto with = [](const std::string& a) {
    return R"({"type":"object","properties":{"a":)" + a +
           R"(,"b":{"type":"integer"}},"required":["b"]})";
  };
  const std::string body =
      R"("properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["b"])";
  const std::vector<Case> cases{
      {with(R"({"not":{"type":"string","minLength":2}})"), true},
      {with(R"({"type":"array","items":{"type":"string"},"uniqueItems":true,"contains":{}})"),
       true},
      {with(R"({"minimum":0})"), true, true},
      {with(R"({"type":"string","pattern":"^[a-z]+$","maxLength":20})"), true},
      {with(R"({"type":"string","pattern":"^\\p{L}+$"})"), true, true},
      {with(R"s({"type":"string","pattern":"^(?!x)"})s"), true},
      {with(R"({"allOf":[{"type":"string"},{"minLength":1}]})"), true, true},
      {with(R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})"), true},
      {with(R"({"enum":["x","y z","y"],"type":"string","minLength":1})"), true, true},
      {with(R"({"type":"number","multipleOf":0.1})"), true},
      {R"({"type":"object","dependentRequired":{"a":["b"]},)" + body + "}", true},
      {R"({"type":"object","anyOf":[{"required":["a"]},{"required":["b"]}],)" + body + "}", true},
      {with(R"({"$ref":"other.json"})"), false},
      {with(R"({"type":"objekt"})"), false},
      {with(R"({"$id":"http://a/x","$defs":{"n":{"type":"string"}},"$ref":"#/$defs/n"})"), true},
      {with(R"({"not":{"$id":"http://a/x","properties":{"p":{"$ref":"#/$defs/n"}}}})"), true},
      {R"({"type":"object","allOf":[{)" + body + R"(},{"minProperties":1}]})", true, true},
      {R"({"type":"object","anyOf":[{)" + body + R"(},{"type":"null"}]})", true, true}};
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  for (const Case& one : cases)
    for (const bool exactly : {false, true}) {
      const auto asked = exactly ? Constraint::Calls::exactly_one : Constraint::Calls::at_least_one;
      const bool strict =
          compiler.compile(Constraint::tool_calls({{"f", one.parameters, true}}, asked)).ok();
      EXPECT_EQ(strict, one.strict) << one.parameters;
      const auto grammar =
          compiler.compile(Constraint::tool_calls({{"f", one.parameters, false}}, asked));
      ASSERT_TRUE(grammar.ok()) << grammar.error().message << "\n" << one.parameters;
      const auto takes = [&](const std::string& arguments) {
        const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
        const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode_with_special(
            "<tool_call>f" + arguments + "</tool_call>");
        for (const std::int32_t token : ids)
          if (!matcher->accept(token).ok()) return false;
        return matcher->can_end();
      };
      const std::string b = "<arg_key>b</arg_key><arg_value>7</arg_value>";
      EXPECT_TRUE(takes(b)) << one.parameters;
      EXPECT_EQ(takes(""), !one.keeps_types) << one.parameters;
      EXPECT_EQ(takes("<arg_key>b</arg_key><arg_value>x</arg_value>"), !one.keeps_types)
          << one.parameters;
      const bool text = one.parameters.find("uniqueItems") == std::string::npos &&
                        one.parameters.find("multipleOf") == std::string::npos;
      EXPECT_TRUE(takes((text ? "<arg_key>a</arg_key><arg_value>y</arg_value>" : "") + b))
          << one.parameters;
      testing::expect_accept_agrees_with_mask(**grammar, 1);
    }
  // The error of a strict tool in the same request names that tool.
  const auto both = compiler.compile(
      Constraint::tool_calls({{"f", cases[0].parameters, false}, {"g", cases[5].parameters, true}},
                             Constraint::Calls::at_least_one));
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.error().message.find(R"(tool "g": $.properties.a)"), std::string::npos)
      << both.error().message;
}

/// Bounds of all arguments, and schemas of undeclared ones, were left out without a word.
TEST(ToolGrammar, AStrictToolKeepsWhatHoldsForAllArguments) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  const auto compile = [&](const std::string& parameters, bool strict) {
    return compiler.compile(
        Constraint::tool_calls({{"f", parameters, strict}}, Constraint::Calls::exactly_one));
  };
  const std::string map = R"({"type":"object","additionalProperties":)";
  const std::string two =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{}},"required":["a"])";
  for (const std::string& parameters :
       {map + R"({"type":"integer"},"minProperties":1})", map + R"(true,"maxProperties":1})",
        map + R"({"type":"null"},"propertyNames":{"pattern":"^[a-z]$"}})",
        two + R"(,"minProperties":2})", two + R"(,"maxProperties":1})"}) {
    const auto refused = compile(parameters, true);
    ASSERT_FALSE(refused.ok()) << parameters;
    EXPECT_EQ(refused.error().reason, kUnsupportedSchema) << refused.error().message;
    EXPECT_TRUE(compile(parameters, false).ok()) << parameters;
  }
  struct Case {
    std::string parameters;
    std::vector<const char*> valid;
    std::vector<const char*> invalid;
  };
  const char* a = "<arg_key>a</arg_key><arg_value>7</arg_value>";
  const char* wrong = "<arg_key>a</arg_key><arg_value>x</arg_value>";
  const char* both =
      "<arg_key>a</arg_key><arg_value>7</arg_value><arg_key>b</arg_key><arg_value>x</arg_value>";
  const std::string of_root = R"({"type":"object","properties":{"a":{"type":"integer"},)"
                              R"("b":{"$ref":"#"}},"required":["a"],)";
  const char* root =
      "<arg_key>a</arg_key><arg_value>7</arg_value><arg_key>b</arg_key>"
      R"(<arg_value>{"a":1,"b":{"a":2}}</arg_value>)";
  for (const Case& one :
       {Case{of_root + R"("additionalProperties":false})", {a, root}, {"", wrong, both}},
        Case{of_root + R"("$defs":{"root":{}},"additionalProperties":false})", {a, root}, {both}},
        Case{map + R"({"type":"integer"}})", {"", a}, {wrong, both}},
        Case{map + R"({"enum":["y"],"type":"integer"}})", {""}, {a, wrong}},
        Case{map + "true}", {"", a, wrong, both}, {}},
        Case{two + R"(,"minProperties":1,"maxProperties":2})", {a, both}, {""}}}) {
    SCOPED_TRACE(one.parameters);
    const auto grammar = compile(one.parameters, true);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const auto takes = [&](const std::string& arguments) {
      const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
      const std::vector<std::int32_t> ids = *testing::tiny_tokenizer().encode_with_special(
          "<tool_call>f" + arguments + "</tool_call>");
      return std::ranges::all_of(ids, [&](auto id) { return matcher->accept(id).ok(); }) &&
             matcher->can_end();
    };
    for (const char* arguments : one.valid) EXPECT_TRUE(takes(arguments)) << arguments;
    for (const char* arguments : one.invalid) EXPECT_FALSE(takes(arguments)) << arguments;
  }
}

TEST(ToolGrammar, MoreToolsThanTheLimitOfSchemasCanBeForced) {
  std::vector<ToolGrammar> tools;
  for (int i = 0; i < 200; ++i)
    tools.push_back({fmt::format("f{}", i), R"({"type":"object"})", false});
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           testing::patient_limits());
  EXPECT_TRUE(
      compiler.compile(Constraint::tool_calls(tools, Constraint::Calls::at_least_one)).ok());
  for (ToolGrammar& tool : tools) tool.strict = true;
  EXPECT_FALSE(
      compiler.compile(Constraint::tool_calls(tools, Constraint::Calls::at_least_one)).ok());
}

}  // namespace
}  // namespace koho
