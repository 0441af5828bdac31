// SPDX-License-Identifier: Apache-2.0
// Random walks through grammars: each next token any of those allowed, alike, which is worse than
// what any model does. What can be reached must be right.
#include <algorithm>
#include <ctime>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "grammar/forced_tokens.h"
#include "grammar/grammar_compiler.h"
#include "tests/tokenizer/tokenizer_json.h"
#include "validator.h"

namespace koho {
namespace {

const std::string kRoot = KOHO_SOURCE_DIR;

const Tokenizer& tiny_tokenizer() {
  static const Result<Tokenizer> tokenizer = Tokenizer::load(kRoot + "/models/tiny/tokenizer.json");
  return *tokenizer;
}

GrammarLimits patient() {
  GrammarLimits limits;
  limits.compile_us_max = 60'000'000;
  limits.step_us_max = 10'000'000;
  return limits;
}

struct Walk {
  std::string text;
  bool ended = false;
};

/// Prefers the end once the walk is long.
Walk walk(const CompiledGrammar& grammar, std::uint64_t seed, int tokens_max) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  const std::unique_ptr<Matcher> matcher = *grammar.start();
  std::vector<std::int32_t> ids;
  for (int i = 0; i < tokens_max; ++i) {
    EXPECT_TRUE(matcher->fill_mask(mask).ok());
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token)
      if (((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0)
        allowed.push_back(token);
    if (allowed.empty()) {
      EXPECT_TRUE(matcher->can_end()) << "a dead end after " << tokenizer.decode(ids);
      break;
    }
    if (matcher->can_end() && random() % 8 == 0) break;
    std::int32_t token = allowed[random() % allowed.size()];
    // Strings end sooner or later.
    if (i > 40)
      for (const std::int32_t other : allowed) {
        const std::string_view bytes = tokenizer.token_bytes(other);
        if (bytes == "\"" || bytes == "}" || bytes == "]") token = other;
      }
    EXPECT_TRUE(matcher->accept(token).ok());
    ids.push_back(token);
  }
  return {tokenizer.decode(ids), matcher->can_end()};
}

TEST(GrammarWalk, WhateverEndsIsValid) {
  const Result<std::string> file = read_file(kRoot + "/tests/grammar/data/schemas.json", 1U << 24U);
  ASSERT_TRUE(file.ok());
  const Result<json::Value> schemas = json::parse(*file);
  ASSERT_TRUE(schemas.ok()) << schemas.error().message;
  ASSERT_EQ(schemas->array()->size(), 200U);
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  int ended = 0;
  std::size_t line = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    // Each schema has a line of its own.
    line = file->find('\n', line) + 1;
    std::string text = file->substr(line, file->find('\n', line) - line);
    if (text.ends_with(',')) text.pop_back();
    const auto grammar = compiler.compile(Constraint::json_schema(text));
    ASSERT_TRUE(grammar.ok()) << i << ": " << grammar.error().message << "\n" << text;
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const Walk found = walk(**grammar, 1000 * i + seed, 250);
      if (!found.ended) continue;
      const Result<json::Value> value = json::parse(found.text);
      // JSON, but beyond the reader: integers have no end.
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

/// Whether the last byte and the token's first one begin a character in more bytes than it needs, a
/// surrogate, or one beyond Unicode.
bool begins_overlong(const Tokenizer& tokenizer,
                     const std::vector<std::int32_t>& ids,
                     std::int32_t token) {
  if (ids.empty() || tokenizer.token_bytes(token).empty()) return false;
  const auto lead = static_cast<unsigned char>(tokenizer.token_bytes(ids.back()).back());
  const auto next = static_cast<unsigned char>(tokenizer.token_bytes(token).front());
  return (lead == 0xE0 && next < 0xA0) || (lead == 0xED && next >= 0xA0) ||
         (lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next >= 0x90);
}

/// Walks both grammars along the same tokens; what they allow must be the same everywhere.
void expect_alike(const CompiledGrammar& one, const CompiledGrammar& other, std::uint64_t seed) {
  const Tokenizer& tokenizer = tiny_tokenizer();
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
      // In the middle of a character: the grammar that counts lets bytes through that are no UTF-8
      // (E0 80, an overlong form).
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

TEST(GrammarWalk, CountedLengthsAllowWhatTheGrammarWouldAllow) {
  GrammarLimits by_grammar = patient();
  by_grammar.count_lengths = false;
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  GrammarCompiler other(tiny_tokenizer(), tiny_tokenizer().vocab_size(), by_grammar);
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
      // One place, two bounds: the grammar's to keep.
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

TEST(GrammarWalk, ALengthMayBeAnything) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(
      Constraint::json_schema(R"({"type":"string","minLength":1000,"maxLength":100000})"));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  const auto accept = [&](std::string_view text) {
    const std::vector<std::int32_t> ids = *tiny_tokenizer().encode(text);
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

TEST(GrammarWalk, ExactlyOneOptionOfOneOfIsValid) {
  const std::vector<std::string> schemas{
      // As pydantic writes a discriminated union; with a default nothing requires the
      // discriminator.
      R"({"$defs":{"A":{"properties":{"kind":{"const":"a","type":"string"},"x":{"type":"integer"}},)"
      R"("required":["kind","x"],"type":"object"},"B":{"properties":{"kind":{"const":"b","default":"b",)"
      R"("type":"string"},"y":{"type":"boolean"}},"required":["y"],"type":"object"}},"properties":{"item":)"
      R"({"discriminator":{"mapping":{"a":"#/$defs/A","b":"#/$defs/B"},"propertyName":"kind"},)"
      R"("oneOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]}},"required":["item"],"type":"object"})",
      // Chains of references, a choice within a choice, definitions.
      R"({"definitions":{"A":{"$ref":"#/definitions/AA"},"AA":{"type":"object","properties":{"k":)"
      R"({"$ref":"#/definitions/one"}},"required":["k"]},"one":{"enum":[1,2]},"BC":{"anyOf":[{"type":"null"},)"
      R"({"allOf":[{"$ref":"#/definitions/C"}]}]},"C":{"type":"object","properties":{"k":{"enum":[3,"1"]}},)"
      R"("required":["k"]}},"oneOf":[{"$ref":"#/definitions/A"},{"$ref":"#/definitions/BC"}]})",
      // As serde writes an enum; and what one option requires, the other never has.
      R"({"oneOf":[{"type":"object","properties":{"A":{"type":"null"}},"required":["A"],"additionalProperties":false},)"
      R"({"type":"object","properties":{"B":{"type":"boolean"}},"required":["B"],"additionalProperties":false}]})",
      R"({"oneOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},)"
      R"({"properties":{"b":{"type":"null"}},"required":["b"]}]})",
      R"({"oneOf":[{"type":["boolean","null"]},{"type":"integer"},{"enum":["n",[true]]},{"const":"m"}]})"};
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  for (const std::string& schema : schemas) {
    const auto grammar = compiler.compile(Constraint::json_schema(schema));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message << "\n" << schema;
    const Result<json::Value> root = json::parse(schema);
    std::set<std::string> texts;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const Walk found = walk(**grammar, seed, 250);
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

TEST(GrammarWalk, CompactJsonHasNoOtherWhiteSpace) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
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
        const std::vector<std::int32_t> ids = *tiny_tokenizer().encode(text);
        for (const std::int32_t token : ids)
          if (!matcher->accept(token).ok()) return false;
        return matcher->can_end();
      };
      EXPECT_TRUE(takes(R"({"a": [1, 2], "b": "x  y"})"));
      EXPECT_EQ(takes(R"({"a":  [1, 2], "b": "x  y"})"), !compact);
      EXPECT_EQ(takes("{\n\"a\": [1, 2], \"b\": \"x  y\"}"), !compact);
    }
}

TEST(GrammarWalk, ATextIsOneOfTheChoices) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size());
  const std::vector<std::string> choices{"yes", "no", "größer als 3", "no, thanks"};
  const auto grammar = compiler.compile(Constraint::choice(choices));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Walk found = walk(**grammar, seed, 100);
    EXPECT_TRUE(found.ended);
    EXPECT_NE(std::ranges::find(choices, found.text), choices.end()) << found.text;
  }
}

TEST(GrammarWalk, ATextMatchesTheExpression) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(Constraint::regex("[0-9]{3}-[a-f]{2}"));
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = walk(**grammar, seed, 100).text;
    EXPECT_EQ(text.size(), 6U) << text;
    EXPECT_EQ(text.find_first_not_of("0123456789"), 3U) << text;
  }
}

TEST(GrammarWalk, ARolledBackTokenLeavesNoTrace) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(Constraint::json_object());
  ASSERT_TRUE(grammar.ok());
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  std::vector<std::uint32_t> before(mask_words(tiny_tokenizer().vocab_size()));
  std::vector<std::uint32_t> after = before;
  std::mt19937_64 random(1);
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(matcher->fill_mask(before).ok());
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < tiny_tokenizer().vocab_size(); ++token)
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

bool is_set(const std::vector<std::uint32_t>& mask, std::int32_t token) {
  return ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
}

/// A random walk that asks accept() at every state of it: of every control token, of all tokens
/// that are allowed where these are few, of some others, and of all that hold one of `bytes`. It
/// must take those of the mask alone.
void expect_mask_is_what_is_taken(const CompiledGrammar& grammar,
                                  std::uint64_t seed,
                                  std::string_view bytes = {}) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const auto vocabulary = static_cast<std::int32_t>(tokenizer.vocab_size());
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(mask_words(vocabulary));
  const std::unique_ptr<Matcher> matcher = *grammar.start();
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(matcher->fill_mask(mask).ok());
    std::vector<std::int32_t> allowed;
    std::vector<std::int32_t> controls;
    std::vector<std::int32_t> asked;
    for (std::int32_t token = 0; token < vocabulary; ++token) {
      if (is_set(mask, token)) allowed.push_back(token);
      if (tokenizer.token_bytes(token).find_first_of(bytes) != std::string_view::npos)
        asked.push_back(token);
      if (!tokenizer.is_added(token)) continue;
      asked.push_back(token);
      if (is_set(mask, token)) controls.push_back(token);
    }
    for (std::size_t k = 0; k < std::min<std::size_t>(allowed.size(), 40); ++k)
      asked.push_back(allowed[allowed.size() <= 40 ? k : random() % allowed.size()]);
    for (int k = 0; k < 40; ++k)
      asked.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
    for (const std::int32_t token : asked) {
      const bool taken = matcher->accept(token).ok();
      ASSERT_EQ(taken, is_set(mask, token))
          << token << " '" << tokenizer.token_bytes(token) << "' after " << tokenizer.decode(ids);
      if (taken) {
        ASSERT_TRUE(matcher->rollback(1).ok());
      }
    }
    if (allowed.empty()) {
      EXPECT_TRUE(matcher->can_end()) << "a dead end after " << tokenizer.decode(ids);
      return;
    }
    // Tags are few among many words: without this no walk would come to the end of a call.
    const std::vector<std::int32_t>& next =
        !controls.empty() && random() % 3 == 0 ? controls : allowed;
    ids.push_back(next[random() % next.size()]);
    ASSERT_TRUE(matcher->accept(ids.back()).ok());
  }
}

TEST(GrammarWalk, CallsOfToolsInAnyOrderTakeWhatTheirMaskAllows) {
  using Calls = Constraint::Calls;
  const std::vector<ToolGrammar> tools{
      {"get_weather",
       R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]})",
       true},
      {"get_time", R"({"type":"object","properties":{}})", true},
      {"get", R"({"type":"object"})", false},
      {"ping", "", true}};
  // One compiler for all: nothing of one grammar may come into another.
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  std::vector<std::size_t> order{0, 1, 2, 3};
  std::uint64_t seed = 0;
  do {
    for (std::size_t count = 1; count <= order.size(); ++count) {
      // The rest of the order does not matter.
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
        expect_mask_is_what_is_taken(**grammar, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  } while (std::ranges::next_permutation(order).found);
}

TEST(GrammarWalk, BehindTheOnlyCallNothingFollows) {
  std::vector<ToolGrammar> tools{{"get_time", "", true}};
  for (int i = 0; i < 300; ++i) tools.push_back({"tool" + std::to_string(i), "", false});
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  Constraint constraint = Constraint::tool_calls(tools, Constraint::Calls::when_called);
  constraint.one_call = true;
  const auto grammar = compiler.compile(constraint);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const auto follow = [&](std::string_view text) {
    std::unique_ptr<Matcher> matcher = *(*grammar)->start();
    const std::vector<std::int32_t> ids = *tiny_tokenizer().encode_with_special(text);
    for (const std::int32_t token : ids)
      if (!matcher->accept(token).ok()) return std::unique_ptr<Matcher>();
    return matcher;
  };
  std::vector<std::uint32_t> mask(mask_words(tiny_tokenizer().vocab_size()));
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
  EXPECT_EQ(follow("<tool_call>get_time<arg_key>"), nullptr) << "it takes no arguments";
}

TEST(GrammarWalk, StringsByPatternsTakeWhatTheirMaskAllows) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
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
        expect_mask_is_what_is_taken(**grammar, seed, "\"");
        if (HasFatalFailure()) return;
      }
    }
}

/// Processor time of a mask within a string of the schema, the least of several.
double mask_us(const std::string& schema, const Tokenizer& tokenizer) {
  GrammarCompiler compiler(tokenizer, tokenizer.vocab_size(), patient());
  const auto grammar = compiler.compile(Constraint::json_schema(schema));
  EXPECT_TRUE(grammar.ok()) << grammar.error().message;
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  for (const char byte : {'[', '"', 'a'}) EXPECT_TRUE(matcher->accept(byte).ok());
  const auto now_us = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
  };
  double least = 1e9;
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(matcher->accept('a').ok());
    const double begin = now_us();
    EXPECT_TRUE(matcher->fill_mask(mask).ok());
    least = std::min(least, now_us() - begin);
  }
  return least;
}

TEST(GrammarWalk, AMaskWithinAPatternCostsLittleMoreThanWithinAnyString) {
  // Words that end a string and go on, which nothing that follows a string does.
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

TEST(GrammarWalk, AnAnswerFollowsAFormatOrCallsTools) {
  const std::string form =
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":5}},"required":["city"]})";
  const std::vector<ToolGrammar> tools{
      {"get_weather",
       R"({"type":"object","properties":{"days":{"type":"integer"}},"required":["days"]})", true},
      {"get", R"({"type":"object"})", false}};
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  for (const bool one_call : {false, true}) {
    Constraint calls = Constraint::tool_calls(tools, Constraint::Calls::instead_of_text);
    calls.one_call = one_call;
    const auto grammar =
        compiler.compile(Constraint::union_of({Constraint::json_schema(form), std::move(calls)}));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(seed);
      expect_mask_is_what_is_taken(**grammar, seed);
      if (HasFatalFailure()) return;
    }
    /// 0: not taken; 1: taken, and more must come; 2: it may end.
    const auto follow = [&](std::string_view text) {
      const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
      const std::vector<std::int32_t> ids = *tiny_tokenizer().encode_with_special(text);
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

TEST(GrammarWalk, AToolThatIsNotStrictIsCalledWhateverItsSchemaSays) {
  struct Case {
    std::string parameters;
    bool keeps_types;  // else arguments are free
  };
  const auto with = [](const std::string& a) {
    return R"({"type":"object","properties":{"a":)" + a +
           R"(,"b":{"type":"integer"}},"required":["b"]})";
  };
  const std::string body =
      R"("properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["b"])";
  const std::vector<Case> cases{
      {with(R"({"not":{}})"), true},
      {with(R"({"type":"array","items":{"type":"string"},"uniqueItems":true,"contains":{}})"),
       true},
      {with(R"({"minimum":0})"), true},
      {with(R"({"type":"string","pattern":"^[a-z]+$","maxLength":20})"), true},
      {with(R"({"type":"string","pattern":"^\\p{L}+$"})"), true},
      {with(R"s({"type":"string","pattern":"^(?!x)"})s"), true},
      {with(R"({"allOf":[{"type":"string"},{"minLength":1}]})"), true},
      {with(R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})"), true},
      {with(R"({"enum":["x","y z","y"],"type":"string","minLength":1})"), true},
      {with(R"({"type":"number","multipleOf":0.1})"), true},
      {R"({"type":"object","dependentRequired":{"a":["b"]},)" + body + "}", true},
      {R"({"type":"object","anyOf":[{"required":["a"]},{"required":["b"]}],)" + body + "}", true},
      {with(R"({"$ref":"other.json"})"), false},
      {with(R"({"type":"objekt"})"), false},
      {R"({"type":"object","allOf":[{)" + body + R"(},{"minProperties":1}]})", false},
      {R"({"type":"object","anyOf":[{)" + body + R"(},{"type":"null"}]})", false}};
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size());
  for (const Case& one : cases)
    for (const bool exactly : {false, true}) {
      const auto asked = exactly ? Constraint::Calls::exactly_one : Constraint::Calls::at_least_one;
      EXPECT_FALSE(
          compiler.compile(Constraint::tool_calls({{"f", one.parameters, true}}, asked)).ok())
          << one.parameters;
      const auto grammar =
          compiler.compile(Constraint::tool_calls({{"f", one.parameters, false}}, asked));
      ASSERT_TRUE(grammar.ok()) << grammar.error().message << "\n" << one.parameters;
      const auto takes = [&](const std::string& arguments) {
        const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
        const std::vector<std::int32_t> ids =
            *tiny_tokenizer().encode_with_special("<tool_call>f" + arguments + "</tool_call>");
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
      expect_mask_is_what_is_taken(**grammar, 1);
    }
  // A strict one beside it is still named.
  const auto both = compiler.compile(
      Constraint::tool_calls({{"f", cases[0].parameters, false}, {"g", cases[4].parameters, true}},
                             Constraint::Calls::at_least_one));
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.error().message.find(R"(tool "g": $.properties.a)"), std::string::npos)
      << both.error().message;
}

TEST(GrammarWalk, MoreToolsThanSchemasAreTakenCanBeForced) {
  std::vector<ToolGrammar> tools;
  for (int i = 0; i < 200; ++i)
    tools.push_back({fmt::format("f{}", i), R"({"type":"object"})", false});
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  EXPECT_TRUE(
      compiler.compile(Constraint::tool_calls(tools, Constraint::Calls::at_least_one)).ok());
  for (ToolGrammar& tool : tools) tool.strict = true;
  EXPECT_FALSE(
      compiler.compile(Constraint::tool_calls(tools, Constraint::Calls::at_least_one)).ok());
}

TEST(GrammarWalk, ACompilerKeepsGrammarsThatNameTokensApart) {
  // Two grammars alike but for the number of their token.
  const std::int32_t first = *tiny_tokenizer().id_of("<tool_call>");
  const std::int32_t second = *tiny_tokenizer().id_of("</tool_call>");
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient());
  for (const std::int32_t token : {first, second}) {
    const auto grammar = compiler.compile(
        Constraint::ebnf(fmt::format("root ::= \"a\" rest\nrest ::= Token({})", token)));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    expect_mask_is_what_is_taken(**grammar, 1);
  }
}

TEST(GrammarWalk, ForcedTokensLeaveNoChoice) {
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

TEST(GrammarWalk, AForbiddenTokenIsRefusedAndChangesNothing) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_tokenizer().vocab_size());
  const auto grammar = compiler.compile(Constraint::choice({"yes"}));
  const std::unique_ptr<Matcher> matcher = *(*grammar)->start();
  const std::int32_t no = (*tiny_tokenizer().encode("no"))[0];
  EXPECT_EQ(matcher->accept(no).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(matcher->accept(*tiny_tokenizer().id_of("<|user|>")).error().code,
            ErrorCode::invalid_argument);
  EXPECT_FALSE(matcher->can_end());
  const std::vector<std::int32_t> yes = *tiny_tokenizer().encode("yes");
  for (const std::int32_t token : yes) {
    const Status status = matcher->accept(token);
    EXPECT_TRUE(status.ok()) << tiny_tokenizer().token_bytes(token) << ": "
                             << status.error().message;
  }
  EXPECT_TRUE(matcher->can_end());
}

}  // namespace
}  // namespace koho
