// SPDX-License-Identifier: Apache-2.0
// Grammars that allowed more than their schema does, or masks that were another's: what random
// schemas found against Python's `jsonschema`. Expressions: exact_expressions_test.cpp.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "grammar/constraint.h"
#include "grammar_accepts.h"
#include "grammar_walk.h"
#include "text_cases.h"

namespace koho::testing {
namespace {

// ---- schemas

class ExactSchema : public ::testing::TestWithParam<Case> {};

TEST_P(ExactSchema, AllowsNoMore) {
  expect_exact(GetParam(), Constraint::json_schema(GetParam().source));
}

std::vector<Case> objects() {
  return {
      {"names_of_no_members",
       R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":false})",
       {"{}"},
       {R"({"a":1})"}},
      {"names_of_a_definition_that_allows_other_types",
       R"({"type":"object","propertyNames":{"anyOf":[{"$ref":"#/$defs/x"},{"enum":["b",1]}]},
           "$defs":{"x":{"anyOf":[{"$ref":"#/$defs/x"},{"type":["integer","string"],"minLength":3},
                                  {"type":"object"}]}}})",
       {R"({"b":1})", R"({"abc":1,"b":2})", "{}"},
       {R"({1:1})", R"({{}:1})", R"({"a":1})", R"({"1":1})"}},
      {"names_that_are_no_strings",
       R"({"type":"object","propertyNames":{"anyOf":[{"$ref":"#/$defs/x"},{"type":"null"}]},
           "$defs":{"x":{"type":"integer"}}})",
       {"{}"},
       {R"({1:1})", R"({null:1})", R"({"1":1})"}},
      {"an_object_whose_members_have_no_names",
       R"({"anyOf":[{"type":"object","propertyNames":{"anyOf":[{"$ref":"#/$defs/x"}]},
                     "minProperties":1},{"type":"null"}],"$defs":{"x":{"type":"integer"}}})",
       {"null"},
       {"{}", R"({"1":1})"}},
      {"a_member_that_cannot_be_beside_other_types",
       R"({"type":["object","string"],"properties":{"a":false,"b":{}},"required":["a","b"]})",
       {R"("x")"},
       {R"({"b":1})", "{}"}},
      {"an_undeclared_member_beside_other_types",
       R"({"type":["object","string"],"required":["a"],"additionalProperties":false})",
       {R"("x")"},
       {"{}"}},
      {"not_required_of_other_types",
       R"({"type":["string","object"],"properties":{"a":{},"b":{}},"not":{"required":["a"]}})",
       {"{}", R"({"b":1})"},
       {R"("x")", R"({"a":1})"}},
      {"an_option_without_a_type",
       R"({"type":["integer","object"],"properties":{"b":{}},
           "anyOf":[{"oneOf":[{"type":"integer","minimum":2},{"type":"string"}]},
                    {"type":"object","required":["b"]}]})",
       {"2", R"({"b":1})"},
       {"1", "{}"}},
  };
}

std::vector<Case> arrays() {
  return {
      {"counts_of_items_written_as_reals",
       R"({"type":"array","items":{"type":"null"},"minItems":1.0,"maxItems":2e0})",
       {"[null]", "[null,null]"},
       {"[]", "[null,null,null]"}},
      {"counts_written_as_reals_beside_other_types",
       R"({"type":["array","string","number"],"minItems":1.0,"maxItems":1.0,"items":{"type":"null"},
           "minLength":2.0,"maxLength":3.0})",
       {"[null]", R"("ab")", R"("abc")", "1.5"},
       {"[]", "[null,null]", R"("a")", R"("abcd")"}},
      {"counts_of_members_written_as_reals",
       R"({"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false,
           "minProperties":1.0,"maxProperties":1.0})",
       {R"({"a":1})", R"({"b":1})"},
       {"{}", R"({"a":1,"b":1})"}},
      {"counts_written_as_reals_of_two_schemas",
       R"({"allOf":[{"type":"string","minLength":1.0,"maxLength":4},{"maxLength":2.0}]})",
       {R"("a")", R"("ab")"},
       {R"("")", R"("abc")"}},
      {"a_step_written_as_a_real",
       R"({"type":"integer","minimum":1,"maximum":9,"multipleOf":4.0})",
       {"4", "8"},
       {"1", "5"}},
      {"different_items_whose_count_is_a_real",
       R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"minItems":2.0})",
       {"[1,2]", "[2,1]"},
       {"[1]", "[1,1]"}},
      {"an_item_that_cannot_be",
       R"({"type":"array","prefixItems":[{"type":"boolean"},false,{"type":"number"}]})",
       {"[]", "[true]"},
       {"[true,true]", "[true,true,1]"}},
      {"an_item_without_a_value",
       R"({"type":"array","prefixItems":[{"type":"null"},{"enum":["a"],"type":"integer"}]})",
       {"[]", "[null]"},
       {R"([null,"a"])"}},
      {"fewer_items_than_schemas",
       R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"maxItems":1})",
       {"[]", "[null]"},
       {"[null,true]"}},
      {"more_items_than_schemas",
       R"({"type":"array","prefixItems":[{"type":"null"}],"minItems":2})",
       {R"([null,1])", R"([null,"a",2])"},
       {"[null]", "[1,1]"}},
      {"different_items_beside_unknown_keywords",
       R"({"type":"array","uniqueItems":true,"errorMessage":"x","markdownDescription":"x",
           "items":{"type":"string","enum":["a","b"],"nullable":false,"example":"a",
                    "x-enum-varnames":["A","B"]}})",
       {"[]", R"(["a"])", R"(["b","a"])"},
       {R"(["a","a"])", R"(["c"])", "null"}},
      {"different_items_within_bounds",
       R"({"type":"array","uniqueItems":true,"items":{"enum":[1,2,"a","bc"],"minimum":2,
           "maxLength":1}})",
       {R"(["a",2])", "[2]"},
       {"[1]", R"(["bc"])", "[2,2]"}},
      {"different_items_of_a_definition",
       R"({"$defs":{"C":{"enum":["r","g"],"title":"C","type":"string"},"D":{"$ref":"#/$defs/C"}},
           "type":"array","items":{"$ref":"#/$defs/D","description":"x"},"uniqueItems":true})",
       {R"(["g","r"])", "[]"},
       {R"(["r","r"])", R"(["b"])"}},
      {"different_booleans_with_a_note",
       R"({"type":"array","items":{"type":"boolean","description":"x"},"uniqueItems":true})",
       {"[false,true]", "[true]"},
       {"[true,true]", "[1]"}},
  };
}

std::vector<Case> numbers() {
  return {
      {"integers_above_a_half", R"({"type":"integer","minimum":0.5})", {"1", "20"}, {"0", "-1"}},
      {"integers_between_fractions",
       R"({"type":"integer","exclusiveMinimum":-1.5,"exclusiveMaximum":1.5})",
       {"-1", "0", "1"},
       {"-2", "2"}},
      {"integers_below_a_fraction",
       R"({"type":["integer","null"],"maximum":-0.5})",
       {"-1", "null"},
       {"0"}},
      {"a_constant_beyond_doubles",
       R"({"allOf":[{"enum":[9007199254740993,7]},{"enum":[9007199254740992.0,7]}]})",
       {"7"},
       {"9007199254740992", "9007199254740993"}},
      {"listed_decimals",
       R"({"enum":[0.1,2.50,1e-7,-0.3,[0.7,{"a":1.1}],9007199254740991,3.0]})",
       {"0.1", "2.5", "1e-07", "-0.3", R"([0.7,{"a":1.1}])", "9007199254740991", "3"},
       {"0.10000000000000001", "0.10", "-0.29999999999999999", "0.69999999999999996"}},
      {"a_constant_decimal",
       R"({"type":"object","properties":{"a":{"const":3.14159}},"required":["a"]})",
       {R"({"a":3.14159})"},
       {R"({"a":3.1415899999999999})"}},
      {"bounds_beyond_doubles",
       R"({"type":"number","minimum":9007199254740993,"maximum":9007199254740997})",
       {"9007199254740994", "9007199254740996"},
       {"9007199254740992", "9007199254740992.9", "9007199254740998"}},
      {"open_bounds_beyond_doubles",
       R"({"type":"number","exclusiveMinimum":-9007199254740995,"exclusiveMaximum":0})",
       {"-9007199254740993", "-1"},
       {"-9007199254740995", "-9007199254740996", "0"}},
      {"a_member_between_two_integers",
       R"({"type":"object","properties":{"a":{"type":"integer","minimum":0.2,"maximum":0.8},
           "b":{"type":"integer","minimum":0.2,"maximum":1},
           "c":{"type":"number","exclusiveMinimum":1,"maximum":1}}})",
       {"{}", R"({"b":1})"},
       {R"({"a":0})", R"({"a":1})", R"({"c":1})"}},
      {"an_option_of_no_numbers",
       R"({"type":["number","string"],"minimum":2,"maximum":1})",
       {R"("a")"},
       {"1", "2"}},
      {"an_option_of_no_arrays",
       R"({"anyOf":[{"type":"array","minItems":2,"maxItems":1},{"type":"null"},
           {"type":"string","minLength":2,"maxLength":1}]})",
       {"null"},
       {"[]", "[1]", "[1,2]", R"("a")"}},
      {"a_format_beside_a_pattern",
       R"({"type":"string","format":"uuid","pattern":"^[0-9a-f]{4}-[0-9a-f]{4}$"})",
       {R"("0123-89ab")"},
       {R"("x")", R"("01234567-0123-0123-0123-0123456789ab")"}},
  };
}

std::vector<Case> notes() {
  return {
      {"bounds_beside_all_types",
       R"({"type":["string","number","integer","boolean","null","array","object"],"minLength":3,
           "minimum":4,"minItems":1})",
       {R"("abc")", "4", "[1]", "null", "{}"},
       {R"("ab")", "3", "[]"}},
      {"an_identifier_in_a_note",
       R"({"type":"boolean","x-sample":{"$id":"http://a/x","a":{"$ref":"#/b"}}})",
       {"true"},
       {"1"}},
      {"members_called_as_keywords",
       R"({"type":"object","properties":{"$id":{"const":"a"},"$ref":{"const":"#"}},
           "required":["$id"]})",
       {R"({"$id":"a","$ref":"#"})"},
       {"{}"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Notes, ExactSchema, ::testing::ValuesIn(notes()), name_of);
INSTANTIATE_TEST_SUITE_P(Objects, ExactSchema, ::testing::ValuesIn(objects()), name_of);
INSTANTIATE_TEST_SUITE_P(Arrays, ExactSchema, ::testing::ValuesIn(arrays()), name_of);
INSTANTIATE_TEST_SUITE_P(Numbers, ExactSchema, ::testing::ValuesIn(numbers()), name_of);

/// Each dropped a keyword when it rewrote the schema.
TEST(ExactSchemas, AreRefusedWhereARewriteWouldDropAKeyword) {
  for (const char* schema : {
           R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"contains":{"const":1}})",
           R"({"type":"array","items":{"enum":["a"],"pattern":"b"},"uniqueItems":true})",
           R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"minItems":1.5})",
           R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,
               "anyOf":[{"prefixItems":[{"const":2}]},{"minItems":3}]})",
           R"({"enum":[[1,1],[1]],"uniqueItems":true,"allOf":[{"type":"array"},{}]})",
           R"({"allOf":[{"type":"object","patternProperties":{"^b$":{"type":"string"}}},
                        {"additionalProperties":{"type":"integer"}}]})",
           R"({"oneOf":[{"type":"integer"},{"required":["b"],"additionalProperties":false}]})",
           R"({"required":["b"],"additionalProperties":false,
               "oneOf":[{"type":"integer","minimum":2},true]})",
           R"({"properties":{"x":{"$id":"http://a/x","$defs":{"n":{"type":"string"}},
                "$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}},"required":["x"]})",
           R"({"properties":{"default":{"$id":"http://a/x","$defs":{"n":{"type":"string"}},
                "$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}},"required":["default"]})",
           R"({"type":"object","properties":{"a":{"$ref":"#/x/y"}},"$defs":{"n":{"type":"integer"}},
               "x":{"y":{"$id":"http://a/x","items":{"$ref":"#/$defs/n"},"type":"array",
                         "$defs":{"n":{"type":"string"}}}}})",
           R"({"type":"object","properties":{"a":{"$ref":"#/x/0/items"}},
               "$defs":{"n":{"type":"integer"}},
               "x":[{"$id":"http://a/x","items":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]},
                     "$defs":{"n":{"type":"string"}}}]})",
       }) {
    const auto compiled = compiler().compile(Constraint::json_schema(schema));
    EXPECT_FALSE(compiled.ok()) << schema;
    if (compiled.ok()) continue;
    EXPECT_EQ(compiled.error().reason, kUnsupportedSchema) << compiled.error().message;
  }
}

// ---- grammars

/// xgrammar reads a regular expression there that no rule of ours has seen.
TEST(ExactGrammars, ExpressionsAreRefused) {
  for (const char* grammar : {R"(root ::= Regex("a.b"))", R"(root ::= "x" (Regex ("\\ud83d")))",
                              R"(root ::= a
           a ::= Regex("[^k]", flags="i"))"})
    for (const Constraint& constraint :
         {Constraint::ebnf(grammar),
          Constraint::structural_tag(fmt::format(
              R"({{"type":"structural_tag","format":{{"type":"grammar","grammar":{}}}}})",
              json_string(grammar)))}) {
      const auto compiled = compiler().compile(constraint);
      ASSERT_FALSE(compiled.ok()) << constraint.text;
      EXPECT_EQ(compiled.error().reason, kInvalidGrammar);
      EXPECT_NE(compiled.error().message.find("Regex(…) is not supported"), std::string::npos)
          << compiled.error().message;
    }
  const Case good{"",
                  "root ::= Regexes \"Regex(\" [Regex] # Regex(\"a\")\nRegexes ::= \"a\"\n",
                  {"aRegex(R"},
                  {"aR"}};
  expect_exact(good, Constraint::ebnf(good.source));
}

/// Nothing follows the start rule, but where a rule refers to it: the mask had no token that
/// reaches beyond an inner one, as "}}" of {"a":{"a":{}}}.
TEST(ExactGrammars, MasksReachBeyondAnInnerStartRule) {
  for (const Constraint& constraint :
       {Constraint::ebnf(R"(root ::= "b" root "c" | "a" root root | "")"),
        Constraint::ebnf(R"(root ::= "b" root "c" | [^bc]+ | "")"),
        Constraint::json_schema(R"({"type":"array","items":{"$ref":"#"}})"),
        Constraint::json_schema(
            R"({"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"integer"}}})")}) {
    SCOPED_TRACE(constraint.text);
    const auto compiled = compiler().compile(constraint);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    for (std::uint64_t seed = 1; seed <= 8; ++seed)
      expect_accept_agrees_with_mask(**compiled, seed, "abc]}");
  }
}

TEST(ExactGrammars, EscapesThatReadersDisagreeOnAreRefused) {
  for (const char* grammar :
       {R"(root ::= "\x41b")", R"(root ::= [\x41b])", R"(root ::= "a\U0000d83d")",
        R"(root ::= [\U00110000])", R"(root ::= "\ud83d\ude00")", R"(root ::= [\uDC00-\uDFFF])"}) {
    const auto compiled = compiler().compile(Constraint::ebnf(grammar));
    EXPECT_FALSE(compiled.ok()) << grammar;
    if (compiled.ok()) continue;
    EXPECT_NE(compiled.error().message.find("write \\"), std::string::npos)
        << compiled.error().message;
  }
  const Case good{"",
                  "root ::= \"\\x41\" \"\\\\x41b\" \"\\u0041b\" # \"\\x41b\" 'é'\n",
                  {"A\\x41bAb"},
                  {"A\\x41bЛ"}};
  expect_exact(good, Constraint::ebnf(good.source));
}

// ---- characters

/// A token for each byte.
std::vector<std::int32_t> byte_tokens(std::string_view bytes) {
  std::vector<std::int32_t> ids;
  for (const char byte : bytes)
    for (std::int32_t id = 0; id < tiny_tokenizer().vocab_size(); ++id)
      if (tiny_tokenizer().token_bytes(id) == std::string_view(&byte, 1)) {
        ids.push_back(id);
        break;
      }
  return ids;
}

bool accepts_bytes(const CompiledGrammar& grammar, std::string_view bytes) {
  const std::unique_ptr<Matcher> matcher = *grammar.start();
  const std::vector<std::int32_t> ids = byte_tokens(bytes);
  EXPECT_EQ(ids.size(), bytes.size());
  std::vector<std::uint32_t> mask(mask_words(4096));
  for (const std::int32_t id : ids) {
    EXPECT_TRUE(matcher->fill_mask(mask).ok());
    const bool allowed = is_set(mask, id);
    const bool accepted = matcher->accept(id).ok();
    EXPECT_EQ(accepted, allowed);
    if (!accepted) return false;
  }
  return matcher->can_end();
}

/// Bytes that are no character come to a client as several, which a length or a class forbids.
TEST(ExactCharacters, AreThoseOfUtf8) {
  const Constraint all[] = {
      Constraint::json_schema(R"({"type":"string"})"),
      Constraint::json_schema(R"({"type":"string","maxLength":1})"),
      Constraint::json_schema(R"({"type":"string","pattern":"^[^a]$"})"),
      Constraint::regex("\".\""),
      Constraint::regex("\"[^a]\""),
      Constraint::regex("\"[^aé]\""),
      Constraint::ebnf("root ::= \"\\\"\" [^a] \"\\\"\""),
      Constraint::ebnf("root ::= \"\\\"\" c \"\\\"\"\nc ::= [^a] | [^b]"),
  };
  for (const Constraint& constraint : all) {
    const auto compiled = compiler().compile(constraint);
    ASSERT_TRUE(compiled.ok()) << constraint.text << compiled.error().message;
    for (const char* good : {"\"\x7f\"", "\"\xc2\x80\"", "\"\xe0\xa0\x80\"", "\"\xed\x9f\xbf\"",
                             "\"\xee\x80\x80\"", "\"\xf0\x90\x80\x80\"", "\"\xf4\x8f\xbf\xbf\""})
      EXPECT_TRUE(accepts_bytes(**compiled, good)) << constraint.text << good;
    for (const char* bad : {"\"\xc0\x80\"", "\"\xc1\xbf\"", "\"\xe0\x80\x80\"", "\"\xe0\x9f\xbf\"",
                            "\"\xed\xa0\x80\"", "\"\xed\xbf\xbf\"", "\"\xf0\x80\x80\x80\"",
                            "\"\xf0\x8f\xbf\xbf\"", "\"\xf4\x90\x80\x80\"", "\"\xf7\xbf\xbf\xbf\""})
      EXPECT_FALSE(accepts_bytes(**compiled, bad)) << constraint.text << bad;
  }
}

TEST(ExactCharacters, HalvesAreRefused) {
  for (const char* pattern :
       {R"(\ud83d)", R"(\ude00\ud83d)", R"(\ud83d\u0041)", R"([\ud83d\ude00])",
        R"([^\ud800-\udfff])", R"(a\u{110000}b)", R"(\u{d83d})", R"(\u{ffffffffffff})"})
    for (const Constraint& constraint :
         {Constraint::regex(pattern),
          Constraint::json_schema(
              fmt::format(R"({{"type":"string","pattern":{}}})", json_string(pattern))),
          Constraint::json_schema(fmt::format(
              R"({{"type":"object","patternProperties":{{{}:{{}}}}}})", json_string(pattern)))}) {
      const auto compiled = compiler().compile(constraint);
      ASSERT_FALSE(compiled.ok()) << constraint.text;
      EXPECT_EQ(compiled.error().reason, kInvalidGrammar);
      EXPECT_NE(compiled.error().message.find("write the character"), std::string::npos)
          << compiled.error().message;
    }
}

/// Several parsers of JSON refuse half of a character.
TEST(ExactCharacters, EscapesAreWhole) {
  for (const Constraint& constraint :
       {Constraint::json_object(), Constraint::json_schema(R"({"type":"object"})"),
        Constraint::json_schema(R"({"type":"object","properties":{"a":{}}})")}) {
    const auto compiled = compiler().compile(constraint);
    ASSERT_TRUE(compiled.ok());
    for (const char* good : {"\\u0041", "\\ud7FF", "\\uE000", "\\uD83d\\uDe00", "\\uffff\\n"})
      EXPECT_TRUE(accepts(**compiled, fmt::format(R"({{"a":"{}"}})", good))) << good;
    for (const char* bad : {"\\ud83d", "\\uDE00", "\\ud83dx", "\\ud83d\\n", "\\ud83d\\ud83d",
                            "\\ud83d\\u0041", "\\ude00\\ud83d"})
      EXPECT_FALSE(accepts(**compiled, fmt::format(R"({{"a":"{}"}})", bad))) << bad;
  }
}

// ---- the cache of parts

/// The mask of a rule was taken from another client's schema: it allowed a token that no text of
/// this one has, which ended the answer.
TEST(PartsCache, MasksAreAsThoseOfACompilerWithoutIt) {
  constexpr std::string_view kClosed = R"({"type":"object","additionalProperties":false})";
  std::vector<std::string> schemas;
  for (const std::string_view other :
       {"{}", R"({"type":"array"})", R"({"type":"string"})", R"({"type":"array","minItems":2})",
        R"({"type":"object"})", R"({"type":"array","items":{"type":"array"}})",
        R"({"type":"array","minItems":2,"maxItems":4})"}) {
    schemas.push_back(fmt::format(R"({{"anyOf":[{},{}]}})", other, kClosed));
    schemas.push_back(fmt::format(R"({{"anyOf":[{},{}]}})", kClosed, other));
    schemas.push_back(fmt::format(R"({{"type":"array","items":{}}})", other));
  }
  GrammarLimits without = patient_limits();
  without.parts_bytes_max = 0;
  GrammarCompiler fresh(tiny_tokenizer(), 4096, without);
  for (const bool backwards : {false, true}) {
    GrammarCompiler sharing(tiny_tokenizer(), 4096, patient_limits());
    for (std::size_t i = 0; i < schemas.size(); ++i) {
      const std::string& schema = schemas[backwards ? schemas.size() - 1 - i : i];
      const auto shared = sharing.compile(Constraint::json_schema(schema));
      const auto own = fresh.compile(Constraint::json_schema(schema));
      ASSERT_TRUE(shared.ok() && own.ok()) << schema;
      std::vector<std::uint32_t> mask(mask_words(4096));
      std::vector<std::uint32_t> expected(mask_words(4096));
      for (const char* text : {"", "{", "[", "[[", "[{", "{\"a\":", "[1,", "[[1],"}) {
        const std::unique_ptr<Matcher> one = matcher_behind(**shared, text);
        const std::unique_ptr<Matcher> two = matcher_behind(**own, text);
        ASSERT_EQ(one == nullptr, two == nullptr) << schema << " after " << text;
        if (one == nullptr) continue;
        ASSERT_TRUE(one->fill_mask(mask).ok() && two->fill_mask(expected).ok());
        EXPECT_EQ(mask, expected) << schema << " after " << text;
      }
    }
  }
}

}  // namespace
}  // namespace koho::testing
