// SPDX-License-Identifier: Apache-2.0
// Which constraints are refused, with which messages, and that a refusal stays within its time
// limit; what the caches keep.
#include <chrono>
#include <malloc.h>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/grammar_compiler.h"
#include "grammar/xgrammar_adapter.h"
#include "grammar_walk.h"

#if defined(__SANITIZE_ADDRESS__)
// Debian packages GCC without the header that declares it.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace koho {
namespace {

std::string refusal(const Constraint& constraint) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(constraint);
  return grammar.ok() ? "accepted" : grammar.error().message;
}

struct Case {
  std::string schema;
  std::string begins;  // the start of the message
};

/// Compiles each schema and expects a refusal that starts with its text and gives a reason.
void expect_refusals(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const std::string message = refusal(Constraint::json_schema(one.schema));
    EXPECT_TRUE(message.starts_with(one.begins)) << one.schema << "\n" << message;
    EXPECT_FALSE(message.ends_with(": ")) << "no reason: " << message;
    EXPECT_EQ(message.find("ignor"), std::string::npos) << message;
  }
}

TEST(GrammarLimits, AnInvalidSchemaIsRefusedWithItsPath) {
  expect_refusals({
      {R"({"type":"objekt"})", "invalid_grammar: $.type: "},
      {R"([1])", "invalid_grammar: $: a schema must be"},
      {R"({"type":"object")", "invalid_grammar: $: "},
      {R"({"properties":{"a":{"properties":{"b":{"type":7}}}}})",
       "invalid_grammar: $.properties.a.properties.b.type: "},
      {R"({"type":"object","required":["a",1]})", "invalid_grammar: $.required: "},
      {R"({"type":"string","minLength":-1})", "invalid_grammar: $.minLength: "},
      {R"({"type":"string","minLength":1.5})", "invalid_grammar: $.minLength: "},
      {R"({"type":"array","maxItems":-1.0})", "invalid_grammar: $.maxItems: "},
      {R"({"type":"array","maxItems":1e30})", "invalid_grammar: $.maxItems: "},
      {R"({"type":"string","minLength":"2"})", "invalid_grammar: $.minLength: "},
      {R"({"enum":[]})", "invalid_grammar: $.enum: "},
      {R"({"$ref":"#/$defs/none"})", "invalid_grammar: $.$ref: "},
      {R"({"prefixItems":[true],"items":{"$ref":"#/prefixItems/00"}})",
       "invalid_grammar: $.items.$ref: "},
      {R"({"properties":{"a":{"$ref":"#/properties"}}})", "invalid_grammar: $.properties.a.$ref: "},
      {R"({"type":"string","pattern":"(["})", "invalid_grammar: $.pattern: Regex parsing error"},
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"string","pattern":"[a-"}}})",
       "invalid_grammar: $.properties.b.pattern: "},
  });
}

TEST(GrammarLimits, AnUnsupportedKeywordIsRefusedWithItsPath) {
  expect_refusals({
      {R"({"$ref":"other.json"})", "unsupported_schema: $.$ref: "},
      {R"({"properties":{"b":{"type":"array","items":{"type":"number","multipleOf":0.5}}}})",
       "unsupported_schema: $.properties.b.items.multipleOf: multipleOf is not supported"},
      {R"({"$defs":{"d":{"type":"string","pattern":"a(?!b)c"}},"properties":{"a":{"$ref":"#/$defs/d"}}})",
       "unsupported_schema: $.$defs.d.pattern: look-around \"(?!\" is not supported"},
      {R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})",
       "unsupported_schema: $: uniqueItems"},
      {R"({"properties":{"a":{"not":{"type":"string","minLength":2}}}})",
       "unsupported_schema: $.properties.a: not "},
      {R"({"if":{},"then":{}})", "unsupported_schema: $: if "},
      {R"({"type":"object","patternProperties":{"^a$":{}},"minProperties":2})",
       "unsupported_schema: $: minProperties above 1"},
      {R"({"items":{"type":"object","additionalProperties":{"type":"null"},"minProperties":2}})",
       "unsupported_schema: $.items: minProperties above 1"},
      {R"({"allOf":[{"type":"string","pattern":"^a"},{"pattern":"b$"}]})",
       "unsupported_schema: $.allOf: "},
      {R"({"type":"string","pattern":"^a","maxLength":3})", "unsupported_schema: $: "},
      {R"({"type":"string","pattern":"(?=a)b"})", "unsupported_schema: $.pattern: look-around"},
      {R"({"type":"string","pattern":"a^b"})", "unsupported_schema: $.pattern: Anchor '^' in the"},
  });
}

TEST(GrammarLimits, AOneOfWhoseOptionsMayOverlapIsRefused) {
  expect_refusals({
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "unsupported_schema: $: "},
      {R"({"$defs":{"c":{"enum":["a","b"]}},"properties":{"i":{"oneOf":[{"$ref":"#/$defs/c"},{"const":"b"}]}}})",
       "unsupported_schema: $.properties.i: oneOf[0] and oneOf[1] may both match a value"},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},)"
       R"({"type":"object","properties":{"k":{"const":1.0}},"required":["k"]}]})",
       "unsupported_schema: $: oneOf[0] and oneOf[1] may both"},
      // Only one of the two requires the property that tells them apart.
      {R"({"oneOf":[{"type":"object","properties":{"x":{},"y":{}}},)"
       R"({"type":"object","properties":{"x":{}},"required":["x"]}]})",
       "unsupported_schema: $: oneOf[0] and oneOf[1] may both"},
      // Without `type`, the second option accepts any string.
      {R"({"oneOf":[{"type":"string"},{"properties":{"x":{"const":1}},"required":["x"]}]})",
       "unsupported_schema: $: oneOf[0] and oneOf[1] may both"},
  });
}

TEST(GrammarLimits, AnUnsatisfiableSchemaIsRefused) {
  expect_refusals({
      {R"(false)", "unsatisfiable_schema: $: "},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
       "unsatisfiable_schema: $: "},
      {R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
       "unsatisfiable_schema: $: "},
      {R"({"type":"integer","minimum":5,"maximum":4})", "unsatisfiable_schema: $: no finite value"},
      {R"({"type":"array","items":false,"minItems":1})", "unsatisfiable_schema: $"},
      {R"({"type":"string","enum":[1,2]})", "unsatisfiable_schema: $: "},
      {R"({"properties":{},"required":["a"],"additionalProperties":false})",
       "unsatisfiable_schema: $: "},
      {R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})",
       "unsatisfiable_schema: $: "},
      {R"({"properties":{"n":{"type":"number","exclusiveMinimum":3,"exclusiveMaximum":3}},"required":["n"]})",
       "unsatisfiable_schema: $.properties.n: "},
      // Numbers have at most six decimals.
      {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e-9})",
       "unsatisfiable_schema: $: "},
      {R"({"type":"number","minimum":1e-9,"maximum":2e-9})", "unsatisfiable_schema: $: "},
      {R"({"type":"array","minItems":1,"items":{"type":"number","exclusiveMinimum":1,"maximum":1.0000001}})",
       "unsatisfiable_schema: $"},
      {R"({"type":"object","properties":{"a":{"type":"number","exclusiveMinimum":0,"maximum":1e-7}},"required":["a"]})",
       "unsatisfiable_schema: $"},
      {R"({"type":"integer","minimum":5,"maximum":7,"multipleOf":10})",
       "unsatisfiable_schema: $.multipleOf: "},
  });
}

TEST(GrammarLimits, WhatAnInvalidGrammarHoldsDoesNotMakeItUnsatisfiable) {
  for (const char* word : {"unsatisfiable", "cannot accept", "greater than"}) {
    const std::string cut = fmt::format("({}", word);
    EXPECT_TRUE(refusal(Constraint::regex(cut)).starts_with("invalid_grammar: ")) << cut;
    const std::string rule = fmt::format("root ::= \"{}", word);
    EXPECT_TRUE(refusal(Constraint::ebnf(rule)).starts_with("invalid_grammar: ")) << rule;
  }
}

TEST(GrammarLimits, ABadSchemaOfAToolIsRefusedWithToolAndPath) {
  for (const char* pattern : {"[a-", "(?=x)y"}) {
    const std::string inner = fmt::format(
        R"({{"type":"object","properties":{{"n":{{"type":"object","properties":{{"s":{{"type":"string","pattern":"{}"}}}}}}}}}})",
        pattern);
    const std::string message = refusal(Constraint::tool_calls(
        {{"f", "", true}, {"g", inner, true}}, Constraint::Calls::at_least_one));
    EXPECT_NE(message.find(R"(: tool "g": $.properties.n.properties.s.pattern: )"),
              std::string::npos)
        << message;
    EXPECT_FALSE(message.ends_with(": ")) << message;
    EXPECT_NE(
        refusal(Constraint::json_schema(inner)).find(": $.properties.n.properties.s.pattern: "),
        std::string::npos)
        << refusal(Constraint::json_schema(inner));
  }
}

TEST(GrammarLimits, FaultsInOptionalOrUnusedPartsAreNotRefused) {
  const std::vector<std::string> schemas{
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/endless"},"b":{"type":"null"}},"required":["b"],)"
      R"("$defs":{"endless":{"type":"object","properties":{"n":{"$ref":"#/$defs/endless"}},"required":["n"]}}})",
      R"({"anyOf":[{"type":"string","enum":[1]},{"type":"null"}]})",
      R"({"$defs":{"unused":{"not":{}}},"type":"boolean","x-order":3})",
      R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":2})",
      R"({"type":"object","patternProperties":{"^a$":{}},"minProperties":1})",
      R"({})",
      R"(true)",
      R"({"type":"object"})",
      R"({"type":"array"})"};
  for (const std::string& schema : schemas)
    EXPECT_EQ(refusal(Constraint::json_schema(schema)), "accepted") << schema;
}

TEST(GrammarLimits, APatternThatXgrammarCannotHashIsAccepted) {
  for (const char* schema :
       {R"({"type":"string","pattern":"(a?){300}"})",
        R"({"type":"array","items":{"type":"string","pattern":"^(ab?){1,300}$"}})"})
    EXPECT_EQ(refusal(Constraint::json_schema(schema)), "accepted") << schema;
}

TEST(GrammarLimits, HostileConstraintsAreRefusedInTime) {
  std::string deep;
  for (int i = 0; i < 30000; ++i) deep += R"({"type":"array","items":)";
  deep += "{}" + std::string(30000, '}');
  std::string enumeration = R"({"enum":[)";
  for (int i = 0; i < 70000; ++i) enumeration += (i > 0 ? ",\"v" : "\"v") + std::to_string(i) + '"';
  enumeration += "]}";
  std::string brackets(30000, '(');
  brackets += 'a';
  brackets.append(30000, ')');
  const std::vector<Constraint> hostile{
      Constraint::json_schema(deep),
      Constraint::json_schema(enumeration),
      Constraint::regex(brackets),
      Constraint::ebnf("root ::= " + brackets),
      Constraint::ebnf("root ::= root"),
      Constraint::ebnf("root ::= missing"),
      Constraint::ebnf("root ::= \"a"),
      Constraint::ebnf(""),
      Constraint::regex(std::string("a\0b", 3)),
      Constraint::regex("\xFF\xFE"),
      Constraint::choice({}),
      Constraint::choice({""}),
      Constraint::json_schema(R"({"type":"string","minLength":100,"maxLength":100000})"),
      Constraint::json_schema(R"({"type":"string","pattern":"^((a{1,1000}){1,1000}){1,1000}$"})"),
      Constraint::tool_calls({}, Constraint::Calls::at_least_one),
      Constraint::tool_calls({{"", "", true}}, Constraint::Calls::at_least_one),
  };
  for (const Constraint& constraint : hostile) {
    GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
    ASSERT_TRUE(compiler.compile(Constraint::choice({"x"})).ok());  // reads the vocabulary
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = compiler.compile(constraint);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::string text = constraint.text.substr(0, 60);
    EXPECT_LT(took.count(), 5.0) << text;  // 1 s on an idle machine
    if (grammar.ok()) continue;            // some are large but valid
    EXPECT_TRUE(is_grammar_error(grammar.error())) << text << grammar.error().message;
  }
}

TEST(GrammarLimits, ACompilationEndsAtItsTimeLimit) {
  GrammarLimits limits;
  limits.compile_us_max = 1;
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           limits);
  const auto grammar = compiler.compile(
      Constraint::json_schema(R"({"type":"object","additionalProperties":{"type":"string"}})"));
  ASSERT_FALSE(grammar.ok());
  EXPECT_EQ(grammar.error().reason, kGrammarTooComplex);
}

TEST(GrammarLimits, AnInterruptedCompilationLeavesTheCompilerUsable) {
  const auto vocabulary = XgrammarAdapter::read_vocabulary(testing::tiny_tokenizer(),
                                                           testing::tiny_tokenizer().vocab_size());
  ASSERT_TRUE(vocabulary.ok());
  GrammarLimits limits;
  limits.compile_us_max = 60'000'000;
  constexpr std::size_t kEnough = std::size_t{1} << 30U;
  XgrammarAdapter adapter(testing::tiny_tokenizer(), *vocabulary, limits);
  const std::vector<Constraint> list{
      Constraint::json_schema(
          R"({"type":"object","properties":{"a":{"type":"integer","minimum":3,"maximum":17},"b":{"enum":["x","y"]}},"required":["a"]})"),
      Constraint::regex("[a-c]{1,3}x?"), Constraint::choice({"yes", "no"}),
      Constraint::tool_calls(
          {{"f", R"({"type":"object","properties":{"n":{"type":"integer"}}})", true}},
          Constraint::Calls::at_least_one)};
  for (const Constraint& constraint : list) {
    // End at each of the first allocations, then at ever larger distances.
    std::uint64_t interrupted = 0;
    for (std::size_t bytes = 1; bytes < kEnough; bytes += 1 + bytes / 16) {
      limits.compile_bytes_max = bytes;
      const auto grammar = adapter.compile(constraint);
      if (grammar.ok()) break;
      ++interrupted;
      ASSERT_EQ(grammar.error().reason, kGrammarTooComplex) << grammar.error().message;
    }
    EXPECT_GT(interrupted, 20U);
    limits.compile_bytes_max = kEnough;
    EXPECT_TRUE(adapter.compile(constraint).ok());
  }
}

TEST(GrammarCompiler, TheSameConstraintIsCompiledOnce) {
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size());
  const auto first = compiler.compile(Constraint::regex("a+"));
  const auto second = compiler.compile(Constraint::regex("a+"));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(compiler.statistics().compiled, 1U);
  EXPECT_EQ(compiler.statistics().cache_hits, 1U);
}

TEST(GrammarCompiler, TheCacheStaysWithinItsLimit) {
  GrammarLimits limits;
  limits.cache_bytes_max = 60'000;
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           limits);
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(compiler.compile(Constraint::regex("[a-z]+" + std::to_string(i))).ok());
  EXPECT_LE(compiler.statistics().cache_bytes, limits.cache_bytes_max);
  EXPECT_GT(compiler.statistics().cache_bytes, 0U);
}

/// What lives on the heap now.
std::size_t heap_bytes() {
#if defined(__SANITIZE_ADDRESS__)
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
#endif
}

TEST(GrammarCompiler, TheMemoryOfAllCachesStaysWithinTheirLimits) {
  GrammarLimits limits;
  limits.cache_bytes_max = 4U << 20U;
  limits.parts_bytes_max = 4U << 20U;
  GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_tokenizer().vocab_size(),
                           limits);
  const std::size_t before = heap_bytes();
  const auto compile = [&compiler](int thread) {
    for (int i = thread; i < 300; i += 2) {
      std::string words;
      for (int k = 0; k < 300; ++k)
        words += fmt::format(R"({}"w{}x{}y")", k == 0 ? "" : ",", i * 7919 % 1000, i * k);
      EXPECT_TRUE(compiler.compile(Constraint::json_schema("{\"enum\":[" + words + "]}")).ok());
    }
  };
  std::thread other(compile, 1);
  compile(0);
  other.join();
  EXPECT_GT(compiler.statistics().cache_bytes, limits.cache_bytes_max / 2);
  EXPECT_LT(heap_bytes() - before, limits.cache_bytes_max + limits.parts_bytes_max);
}

}  // namespace
}  // namespace koho
