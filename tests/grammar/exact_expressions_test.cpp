// SPDX-License-Identifier: Apache-2.0
// Expressions that allowed more than they do somewhere: what random ones found against Python's
// `regex`, and what ECMA-262, Python's re and Rust's regex read differently.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "grammar/constraint.h"
#include "grammar_accepts.h"
#include "grammar_walk.h"
#include "text_cases.h"
#include "tokenizer/utf8.h"

namespace koho::testing {
namespace {

class ExactExpression : public ::testing::TestWithParam<Case> {};

TEST_P(ExactExpression, AllowsNoMore) {
  expect_exact(GetParam(), Constraint::regex(GetParam().source));
}

std::vector<Case> expressions() {
  return {
      {"a_dot_is_no_end_of_a_line", "a.b", {"axb", "aéb"}, {"a\nb", "a\rb"}},
      {"a_dot_is_all_with_a_flag", "(?s)a.b", {"axb", "a\nb"}, {"ab"}},
      {"two_flags", "(?is)a.b", {"AxB", "a\nb"}, {"ab"}},
      {"a_hyphen_before_a_set", R"([+-\s]x)", {"+x", "-x", " x"}, {",x", "x"}},
      {"a_hyphen_behind_a_set", R"([\w-.]é)", {"aé", "-é", ".é"}, {"/é", "~é"}},
      {"a_hyphen_behind_a_range", R"([a-c-e]é)", {"bé", "-é", "eé"}, {"dé"}},
      {"a_hyphen_before_a_property", R"([,-\p{Lu}]x)", {",x", "-x", "Äx"}, {".x", "ax"}},
      {"two_digits_in_a_class", R"([\x20-\x7e2é])", {" ", "~", "2", "é"}, {"ޢ", "ߢ"}},
      {"two_digits_of_a_character", R"(\x41b)", {"Ab"}, {"Л", "A"}},
      {"a_control_character_before_a_digit", R"([\x1f2]é)", {"\x1fé", "2é"}, {"ǲé"}},
      {"a_circumflex_first", R"([\^a]é)", {"^é", "aé"}, {"bé"}},
      {"a_backslash_and_a_class", R"(\\[^\[\d])", {"\\a"}, {"\\[", "\\1", "a", "\\ab"}},
      {"punctuation", R"(\p{P}{2})", {"!?", "\".", "«-"}, {"a.", "+!"}},
      {"punctuation_in_a_class", R"([\p{P}x]+)", {"x!", "%&"}, {"y", "+"}},
      {"all_of_a_property_in_no_class", R"([^\p{N}\p{P}])", {"a", "é", "日"}, {"۴", "1", "჻", "!"}},
      {"control_characters_in_no_class",
       R"([^\p{Cc}a])",
       {"b", "é"},
       {std::string(1, '\0'), "\n", "\x01", "\x7f", "a"}},
      {"symbols", R"(\p{S})", {"+", "<", "€"}, {"!", "a"}},
      {"a_script_without_what_it_shares", R"(\p{Greek})", {"α", "Ω"}, {"a", "\u0345"}},
      {"escapes_that_need_none", R"(a\@b\:\ \"\'\!\#)", {"a@b: \"'!#"}, {"a@b"}},
      {"a_character_of_two_halves", R"(a\ud83d\ude00b)", {"a\U0001F600b"}, {"ab"}},
      {"a_character_by_its_number", R"([\u{1F600}x]\u00e9)", {"\U0001F600é", "xé"}, {"é"}},
      {"two_hyphens_behind_a_set", R"([\d--9]x)", {"1x", "-x"}, {".x", "/x"}},
      {"many_hyphens_behind_a_set", R"([\d---9]x)", {"1x", "-x"}, {".x", "/x"}},
      {"a_range_from_a_hyphen", R"([^a-c--9]x)", {"dx"}, {".x", "/x", "5x", "bx"}},
      {"no_letter_of_any_case",
       R"((?i)[^ks\x00-\x1f\-!-@]x)",
       {"ax", "AX", "éx"},
       {"kx", "Kx", "\u212ax", "sX", "\u017fx", "-x", "5x", "\nx"}},
      {"no_letter_of_a_range", "(?i)[^j-t]", {"a"}, {"J", "k", "\u212a", "\u017f"}},
      {"no_letter_of_a_word", R"((?i)[^\w])", {"-"}, {"A", "k", "\u212a", "\u017f"}},
      {"named_groups", "(?P<n1>a)(?<n_2>b)", {"ab"}, {"a", "n1"}},
      {"a_dot_is_no_separator_of_lines", "a.b", {"a\u00a0b"}, {"a\u2028b", "a\u2029b"}},
      {"a_word_without_separators_of_lines", "^(?!ab).*$", {"ac", "\u00a0"}, {"a\u2028", "\u2029"}},
      {"no_word_in_any_case", R"((?i)\W)", {"-", "é"}, {"a", "K", "\u212a", "\u017f"}},
      {"no_word_in_any_case_of_a_class",
       R"((?i)[\Wb])",
       {"-", "^", "[", "é", "b", "B"},
       {"a", "Z", "_", "5", "\u212a", "\u017f"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Dialects, ExactExpression, ::testing::ValuesIn(expressions()), name_of);

TEST(ExactExpressions, AnExpressionMayEndAnywhere) {
  std::vector<std::string> sources = {R"([^\s-+-9]x)", R"((?i)[a-z\d-]x{2,3}?)"};
  for (const Case& one : expressions()) sources.push_back(one.source);
  for (const std::string& source : sources)
    for (std::size_t size = 1; size < source.size(); ++size) {
      const std::string cut = source.substr(0, size);
      SCOPED_TRACE(cut);
      const auto compiled = compiler().compile(Constraint::regex(cut));
      if (!compiled.ok()) {
        EXPECT_FALSE(compiled.error().message.empty());
      }
    }
}

TEST(ExactExpressions, WhatDialectsReadDifferentlyIsRefused) {
  struct Refused {
    const char* expression;
    const char* instead;
  };
  const Refused cases[] = {
      {"a{1,3}+", "(?:a{2})+"},
      {"a{2}{3}", "(?:a{2})+"},
      {"a*+b", "(?:a{2})+"},
      {"a{,2}", "write {0,2}"},
      {"(?>a)b", "use (…) or (?:…)"},
      {R"((?i)[^\x41]x)", "as in [^Aa]"},
      {R"((?i)[^\p{Lu}])", "as in [^Aa]"},
      {"(?i)[^0-Z]", "as in [^Aa]"},
      {"(?i)[^+-a]", "as in [^Aa]"},
      {"(?i)[^!-~]", "as in [^Aa]"},
      {R"(\012)", "write \\x00"},
      {R"([\07])", "write \\x00"},
      {R"([\d-a-z]x)", "write the hyphen first"},
      {R"([^\s-+-9]x)", "write the hyphen first"},
      {"[^]]", "write \\] for the bracket"},
      {"[]a]", "write \\] for the bracket"},
      {"a[^]", "for any character"},
  };
  for (const auto& [expression, instead] : cases)
    for (const bool schema : {false, true}) {
      const auto compiled = compiler().compile(
          schema ? Constraint::json_schema(
                       fmt::format(R"({{"type":"string","pattern":{}}})", json_string(expression)))
                 : Constraint::regex(expression));
      EXPECT_FALSE(compiled.ok()) << expression;
      if (compiled.ok()) continue;
      EXPECT_NE(compiled.error().message.find(instead), std::string::npos)
          << compiled.error().message;
    }
}

/// Characters that some dialect has in \\s: ECMA-262, Python's re, Rust's regex.
bool is_space_somewhere(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000 || c == 0xFEFF;
}

bool is_space_everywhere(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == ' ';
}

/// What is no white space is none in any dialect, whatever else the expression has: with "é" it
/// is one of rules, without an automaton.
TEST(ExactExpressions, WhiteSpaceMeansTheLeastOfAllDialects) {
  struct Set {
    const char* expression;
    bool (*allows)(char32_t);
  };
  const auto no_space = [](char32_t c) { return !is_space_somewhere(c); };
  const auto any = [](char32_t) { return true; };
  const Set sets[] = {{R"(\s)", is_space_everywhere},
                      {R"([\s])", is_space_everywhere},
                      {R"([^\S])", is_space_everywhere},
                      {R"(\S)", no_space},
                      {R"([\S])", no_space},
                      {R"([^\s])", no_space},
                      {R"([\s\S])", any},
                      {R"([\S\s])", any}};
  const auto check = [](const Set& set, const CompiledGrammar& grammar, bool json) {
    for (char32_t c = json ? 0x20 : 0; c < 0x10000; ++c) {
      if (c == 0x3100) c = 0xFE00;
      if (json && (c == '"' || c == '\\')) continue;
      std::string text(json ? "\"" : "");
      append_utf8(text, c);
      if (json) text += '"';
      EXPECT_EQ(accepts(grammar, text), set.allows(c))
          << set.expression << (json ? " of a string, " : ", ") << static_cast<unsigned>(c);
    }
  };
  for (const Set& set : sets) {
    for (const char* form : {"{}", "{}|éé"}) {
      const auto compiled =
          compiler().compile(Constraint::regex(fmt::format(fmt::runtime(form), set.expression)));
      ASSERT_TRUE(compiled.ok()) << set.expression;
      check(set, **compiled, false);
    }
    const auto compiled = compiler().compile(Constraint::json_schema(fmt::format(
        R"({{"type":"string","pattern":{}}})", json_string(fmt::format("^{}$", set.expression)))));
    ASSERT_TRUE(compiled.ok()) << set.expression;
    check(set, **compiled, true);
  }
}

/// A tool's strings are written as they are: nothing else keeps a line feed out of them.
TEST(ExactExpressions, HoldForArgumentsOfTools) {
  const Case cases[] = {
      {"", R"(^a[^\s]b$)", {"axb"}, {"a\nb", "a b", "a\tb", "a\u2003b"}},
      {"", "^a.b$", {"axb", "a b"}, {"a\nb", "a\rb", "a\u2028b"}},
      {"", R"(^a[\s\S]b$)", {"axb", "a\nb", "a\u2028b"}, {"ab"}},
  };
  GrammarCompiler tools(tiny_tokenizer(), tiny_tokenizer().vocab_size(), patient_limits());
  for (const Case& one : cases) {
    SCOPED_TRACE(one.source);
    const auto compiled = tools.compile(Constraint::tool_calls(
        {ToolGrammar{"f",
                     fmt::format(R"({{"type":"object","properties":{{"s":{{"type":"string",)"
                                 R"("pattern":{}}}}},"required":["s"]}})",
                                 json_string(one.source)),
                     true}},
        Constraint::Calls::exactly_one));
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    const auto calls = [&](const std::string& value) {
      const std::unique_ptr<Matcher> matcher = *(*compiled)->start();
      const std::vector<std::int32_t> ids = *tiny_tokenizer().encode_with_special(
          "<tool_call>f<arg_key>s</arg_key><arg_value>" + value + "</arg_value></tool_call>");
      for (const std::int32_t id : ids)
        if (!matcher->accept(id).ok()) return false;
      return matcher->can_end();
    };
    for (const std::string& value : one.allowed) EXPECT_TRUE(calls(value)) << value;
    for (const std::string& value : one.excluded) EXPECT_FALSE(calls(value)) << value;
  }
}

}  // namespace
}  // namespace koho::testing
