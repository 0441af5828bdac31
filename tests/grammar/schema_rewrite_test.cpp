// SPDX-License-Identifier: Apache-2.0
// Schemas that are rewritten before xgrammar compiles them: what they allow and what not, texts
// sampled from them, and the refusals that say what to write instead.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "grammar/constraint.h"
#include "grammar_accepts.h"
#include "grammar_walk.h"
#include "text_cases.h"
#include "validator.h"

namespace koho::testing {
namespace {

std::vector<Case> merged() {
  return {
      {"all_of_two_objects",
       R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                    {"type":"object","properties":{"b":{"type":"string"}},"required":["b"]}]})",
       {R"({"a":1,"b":"x"})"},
       {R"({"a":1})", R"({"b":"x"})", R"({"a":"1","b":"x"})"}},
      {"all_of_bounds",
       R"({"allOf":[{"type":"integer","minimum":3},{"minimum":5,"maximum":9},{"maximum":7}]})",
       {"5", "7"},
       {"4", "8"}},
      {"all_of_types",
       R"({"allOf":[{"type":["string","integer"]},{"type":["integer","null"]}]})",
       {"3"},
       {"null", "\"a\""}},
      {"all_of_one_property",
       R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":2}}},
                    {"properties":{"a":{"maximum":4}},"required":["a"]}]})",
       {R"({"a":3})"},
       {R"({"a":1})", R"({"a":5})", "{}"}},
      {"all_of_a_closed_object",
       R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},
                     "additionalProperties":false},
                    {"type":"object","properties":{"a":{},"b":{"type":"integer"}}}]})",
       {R"({"a":1})", "{}"},
       {R"({"a":1,"b":2})"}},
      {"all_of_a_reference",
       R"({"$defs":{"named":{"type":"object","properties":{"name":{"type":"string","maxLength":3}},
                             "required":["name"]}},
           "allOf":[{"$ref":"#/$defs/named"},
                    {"properties":{"age":{"type":"integer"}},"required":["age"]}]})",
       {R"({"name":"a","age":1})"},
       {R"({"name":"a"})", R"({"age":1})"}},
      {"all_of_beside_properties",
       R"({"type":"object","properties":{"a":{"type":"boolean"}},
           "allOf":[{"required":["a"]},{"properties":{"b":{"type":"null"}},"required":["b"]}]})",
       {R"({"a":true,"b":null})"},
       {R"({"b":null})", R"({"a":true})"}},
      {"all_of_choices",
       R"({"allOf":[{"anyOf":[{"type":"integer"},{"type":"string","maxLength":2}]},
                    {"anyOf":[{"type":"string"},{"type":"null"}]}]})",
       {"\"ab\""},
       {"1", "null", "\"abc\""}},
      {"all_of_enums",
       R"({"allOf":[{"enum":["a","b",1]},{"enum":["b",1,2]},{"type":"string"}]})",
       {"\"b\""},
       {"\"a\"", "1", "2"}},
      {"any_of_beside_a_type",
       R"({"type":"string","anyOf":[{"maxLength":1},{"enum":["long"]}]})",
       {"\"x\"", "\"long\""},
       {"\"xy\"", "1"}},
      {"any_of_required",
       R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
           "anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}"}},
      {"one_of_in_all_of",
       R"({"allOf":[{"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},
                              {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]},
                    {"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}]})",
       {R"({"k":"a","n":1})", R"({"k":"b","n":1})"},
       {R"({"k":"c","n":1})", R"({"k":"a"})"}},
  };
}

std::vector<Case> references() {
  return {
      {"reference_beside_a_bound",
       R"({"$defs":{"n":{"type":"integer","minimum":1}},"$ref":"#/$defs/n","maximum":3})",
       {"1", "3"},
       {"0", "4"}},
      {"reference_to_an_escaped_name",
       R"({"$defs":{"a/b":{"type":"integer"},"c~d":{"type":"boolean"},"e%f":{"type":"null"},
                    "List[int]":{"type":"string"},"a_b":{"type":"null"}},
           "type":"array","items":false,"minItems":4,
           "prefixItems":[{"$ref":"#/$defs/a~1b"},{"$ref":"#/$defs/c~0d"},
                          {"$ref":"#/$defs/e%25f"},{"$ref":"#/$defs/List%5Bint%5D"}]})",
       {R"([1,true,null,"x"])"},
       {R"([null,true,null,"x"])", R"([1,1,null,"x"])", R"([1,true,null,1])"}},
      {"reference_into_a_schema",
       R"({"components":{"schemas":{"n":{"type":"integer"}}},
           "definitions":{"A":{"type":"object","properties":{"x":{"$ref":"#/components/schemas/n"}},
                               "required":["x"]}},
           "type":"object","required":["a","b","c"],
           "properties":{"a":{"anyOf":[{"type":"null"},{"type":"boolean"}]},
                         "b":{"$ref":"#/properties/a/anyOf/1"},
                         "c":{"$ref":"#/definitions/A/properties/x"}}})",
       {R"({"a":null,"b":true,"c":1})"},
       {R"({"a":null,"b":null,"c":1})", R"({"a":null,"b":true,"c":{"x":1}})"}},
      {"reference_to_what_it_is_in",
       R"({"type":"object","properties":{"tree":{"type":"object","additionalProperties":false,
           "properties":{"next":{"$ref":"#/properties/tree"}}}},"required":["tree"]})",
       {R"({"tree":{}})", R"({"tree":{"next":{"next":{}}}})"},
       {R"({"tree":{"next":1}})"}},
  };
}

std::vector<Case> excluding() {
  return {
      {"not_a_type",
       R"({"not":{"type":["object","array","string"]}})",
       {"1", "null", "true"},
       {"\"a\"", "{}", "[]"}},
      {"not_null",
       R"({"type":["string","null"],"maxLength":2,"not":{"type":"null"}})",
       {"\"a\""},
       {"null"}},
      {"not_a_word",
       R"({"type":"string","not":{"const":"no"}})",
       {"\"n\"", "\"not\"", "\"nn\"", "\"\"", "\"yes\""},
       {"\"no\""}},
      {"not_words",
       R"({"type":"string","not":{"enum":["a","ab","b.c"]}})",
       {"\"\"", "\"aa\"", "\"abc\"", "\"b\"", "\"b.\"", "\"b.cd\"", "\"bxc\""},
       {"\"a\"", "\"ab\"", "\"b.c\""}},
      {"not_of_an_enum", R"({"enum":[1,2,3],"not":{"enum":[2]}})", {"1", "3"}, {"2"}},
      {"not_required",
       R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
           "not":{"required":["a","b"]}})",
       {R"({"a":1})", R"({"b":1})", "{}"},
       {R"({"a":1,"b":2})"}},
      {"not_any_of",
       R"({"type":["integer","string","null"],"maxLength":1,
                         "not":{"anyOf":[{"type":"string"},{"type":"null"}]}})",
       {"1"},
       {"\"a\"", "null"}},
      {"not_not", R"({"not":{"not":{"type":"integer"}}})", {"1"}, {"\"a\""}},
      {"unique_enum",
       R"({"type":"array","items":{"enum":["r","g","b"]},"uniqueItems":true,"minItems":1})",
       {R"(["r"])", R"(["b","r"])", R"(["g","r","b"])"},
       {"[]", R"(["r","r"])", R"(["r","g","r"])", R"(["x"])"}},
      {"unique_of_eight_in_order",
       R"({"type":"array","items":{"enum":[1,2,3,4,5,6,7,8]},"uniqueItems":true})",
       {"[]", "[1,8]", "[1,2,3,4,5,6,7,8]"},
       {"[1,1]", "[9]"}},
      {"unique_booleans",
       R"({"type":"array","items":{"type":"boolean"},"uniqueItems":true})",
       {"[]", "[true]", "[false,true]"},
       {"[true,true]", "[true,false,true]"}},
      {"unique_single",
       R"({"type":"array","items":{"type":"integer"},"uniqueItems":true,
                            "maxItems":1})",
       {"[]", "[7]"},
       {"[7,7]"}},
  };
}

std::vector<Case> rewritten() {
  return {
      {"ignore_case",
       R"({"type":"string","pattern":"^(?i)ab[c-d]-1$"})",
       {"\"abc-1\"", "\"ABD-1\"", "\"aBc-1\""},
       {"\"abe-1\"", "\"ab-1\""}},
      {"unevaluated_closed",
       R"({"type":"object","properties":{"a":{"type":"integer"}},
           "allOf":[{"properties":{"b":{"type":"integer"}}}],"unevaluatedProperties":false})",
       {R"({"a":1,"b":2})", "{}"},
       {R"({"c":1})"}},
      {"unevaluated_of_an_option",
       R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}}},
                    {"unevaluatedProperties":false}]})",
       {"{}"},
       {R"({"a":1})"}},
      {"unevaluated_alone",
       R"({"type":"object","unevaluatedProperties":false})",
       {"{}"},
       {R"({"a":1})"}},
      {"bound_without_type", R"({"minimum":3})", {"3", "\"a\"", "null", "[1]"}, {"2"}},
      {"length_without_type", R"({"maxLength":2})", {"\"ab\"", "7", "{}"}, {"\"abc\""}},
      {"letters",
       R"({"type":"string","pattern":"^\\p{Lu}\\p{L}+$"})",
       {"\"Abc\"", "\"\xc3\x84\xc3\xa4\"", "\"\xd0\x9c\xd0\xb8\"", "\"A\xe6\xbc\xa2\""},
       {"\"abc\"", "\"A1\"", "\"A\""}},
      {"letters_in_a_class",
       R"({"type":"string","pattern":"^[\\p{L}\\p{Nd}_]{2,4}$"})",
       {"\"a1\"", "\"\xc3\xa4_\""},
       {"\"a\"", "\"a-b\""}},
      {"look_ahead_words",
       R"({"type":"string","pattern":"^(?!(?:yes|no)$).*$"})",
       {"\"maybe\"", "\"yess\"", "\"\"", "\"n\""},
       {"\"yes\"", "\"no\""}},
      {"look_ahead_prefix",
       R"({"type":"string","pattern":"^(?!tmp|x-).+$"})",
       {"\"t\"", "\"tm\"", "\"xy\"", "\"a\""},
       {"\"tmp\"", "\"tmpfile\"", "\"x-a\"", "\"\""}},
  };
}

/// A schema of strings with a format, and keywords beside it.
std::string of_format(const std::string& format, const std::string& more = "") {
  return R"({"type":"string","format":")" + format + '"' + more + '}';
}

std::vector<Case> formatted() {
  return {
      {"format_regex",
       of_format("regex"),
       {R"("^[a-z0-9_-]+(foo|[^x])*x{1,3}$")", R"("a.b*")", R"("")", R"x("(?:ab?)+")x"},
       {R"("[a")", R"x("a)")x", R"("*a")", R"("a{3,1}")", R"("((ab?)+")", R"("[z-a]")",
        R"("a**")"}},
      {"format_iri", of_format("iri"), {R"("http://a.b/c")"}, {R"("not-an-iri")", R"("")"}},
      {"format_idn_email", of_format("idn-email"), {R"("a@b.cd")"}, {R"("a@b")", R"("a")"}},
      {"format_email_with_lengths",
       of_format("email", R"(,"minLength":3,"maxLength":40)"),
       {R"("john.doe@example.com")", R"("a@b.cd")"},
       {R"("example")", R"("john@example")", R"("a..b@c.de")",
        '"' + std::string(40, 'a') + R"(@b.cd")"}},
      {"format_email_long",
       of_format("email", R"(,"maxLength":1024)"),
       {R"("john_doe+news@mail.example.com")"},
       {R"("example")", R"("@example.com")"}},
      {"format_date_with_its_length",
       of_format("date", R"(,"minLength":10,"maxLength":10)"),
       {R"("2024-02-29")"},
       {R"("2023-02-29")"}},
      {"format_date_time_short",
       of_format("date-time", R"(,"maxLength":24)"),
       {R"("2024-02-29T23:59:59Z")"},
       {R"("2024-02-31T23:59:59Z")", R"("2024-02-29T23:59:59.123456Z")"}},
      {"format_date_time",
       of_format("date-time"),
       {R"("2024-02-29T23:59:59.123456+02:00")"},
       {R"("2024-02-31T23:59:59Z")", R"("2024-02-29T24:00:00Z")"}},
      {"format_uri_with_length",
       of_format("uri", R"(,"maxLength":30)"),
       {R"("https://example.com:80/a?b=c#d")"},
       {R"("https://example.com:80/a?b=c#de")", R"("example")"}},
      {"format_uri_short",
       of_format("uri", R"(,"maxLength":12)"),
       {R"("a:b")", R"("ab:cd.ef")"},
       {R"("https://a.bc")", R"("abc")"}},
      {"format_hostname",
       of_format("hostname", R"(,"maxLength":253)"),
       {R"("a-b.example.com")"},
       {R"("-a.com")", R"("a..b")", R"("")"}},
      {"format_json_pointer",
       of_format("json-pointer"),
       {R"("/a~1b/0")", R"("")"},
       {R"("a")", R"("/a"b")", R"("/~2")", "\"/\n\""}},
      {"format_ipv6", of_format("ipv6"), {R"("fe80::1")", R"("::")"}, {R"("1::2::3")", R"("g::")"}},
      {"format_ipv4", of_format("ipv4"), {R"("10.0.0.1")"}, {R"("10.0.0.01")", R"("256.1.1.1")"}},
      {"format_unknown", of_format("colour"), {R"("red")"}, {"3"}},
  };
}

std::vector<Case> bounded() {
  return {
      {"names_with_lengths",
       R"({"type":"object","propertyNames":{"minLength":2,"maxLength":4},
           "additionalProperties":{"type":"string","maxLength":2}})",
       {R"({"ab":"xy","abcd":""})", "{}"},
       {R"({"a":"x"})", R"({"abcde":"x"})", R"({"ab":"xyz"})", R"({3:"x"})"}},
      {"names_by_a_pattern_with_bounds",
       R"({"type":"object","patternProperties":{"^.{1,200}$":{"type":"object",
           "patternProperties":{"^x-[a-z]{2,300}$":{"type":"integer"}}}}})",
       {R"({"a b":{"x-ab":1}})", '{' + ('"' + std::string(200, 'a')) + R"(":{}})"},
       {R"({"":{}})", R"({"a":{"x-a":1}})", '{' + ('"' + std::string(201, 'a')) + R"(":{}})"}},
      {"bounds_that_differ",
       R"({"anyOf":[{"type":"string","maxLength":300},{"type":"string","minLength":2,
           "maxLength":200}]})",
       {'"' + std::string(200, 'a') + '"'},
       {'"' + std::string(301, 'a') + '"'}},
      {"bounds_beside_an_enum",
       R"({"anyOf":[{"type":"string","minLength":2,"maxLength":200},{"enum":["abc",7]}]})",
       {R"("abc")", R"("some text")", "7"},
       {R"("a")", "8"}},
      {"bounds_that_an_enum_breaks",
       R"({"anyOf":[{"type":"string","minLength":5,"maxLength":20},{"enum":["abc"]}]})",
       {R"("abc")", R"("some text")"},
       {R"("ab")"}},
      {"bounds_behind_a_beginning",
       R"({"type":"string","pattern":"^[A-Z]\\.[a-z]{2,300}$"})",
       {R"("A.bc")", "\"A." + std::string(300, 'b') + '"'},
       {R"("A.b")", R"("Axbc")", R"("A.")", "\"A." + std::string(301, 'b') + '"'}},
      {"optional_bounds",
       R"({"type":"string","pattern":"^(?:[a-z]{1,200})?$"})",
       {R"("")", R"("abc")"},
       {R"("A")", '"' + std::string(201, 'b') + '"'}},
  };
}

std::vector<Case> listed() {
  return {
      {"enum_beside_keywords_of_other_types",
       R"({"type":["string","null"],"enum":["a",null],"additionalProperties":false,"minItems":2})",
       {"\"a\"", "null"},
       {"\"b\"", "{}"}},
      {"enum_beside_bounds",
       R"({"type":"integer","format":"int32","enum":[1,2,30],"minimum":2,"exclusiveMaximum":30})",
       {"2"},
       {"1", "30"}},
      {"enum_beside_lengths_and_a_format",
       R"({"enum":["a","2024-02-29","bcd"],"format":"date","minLength":3})",
       {"\"2024-02-29\"", "\"bcd\""},
       {"\"a\"", "\"2024-02-28\""}},
      {"const_beside_an_enum",
       R"({"type":"object","properties":{"k":{"type":"string","const":"a","enum":["a","b"]}},
           "required":["k"]})",
       {R"({"k":"a"})"},
       {R"({"k":"b"})"}},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all = merged();
  for (const std::vector<Case>& more :
       {listed(), references(), excluding(), rewritten(), formatted(), bounded()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

class SchemaRewrite : public ::testing::TestWithParam<Case> {};

TEST_P(SchemaRewrite, AllowsWhatTheSchemaDoes) {
  const Case& one = GetParam();
  const auto compiled = compiler().compile(Constraint::json_schema(one.source));
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  for (const std::string& text : one.allowed) EXPECT_TRUE(accepts(**compiled, text)) << text;
  for (const std::string& text : one.excluded) EXPECT_FALSE(accepts(**compiled, text)) << text;
  const json::Value schema = std::move(*json::parse(one.source));
  // The validator's expressions are PCRE2's, where (?i) is at the beginning only.
  if (one.source.find("(?i)") != std::string::npos) return;
  int ended = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Walk walk = random_walk(**compiled, seed, 200);
    if (!walk.ended) continue;
    ++ended;
    const Result<json::Value> value = json::parse(walk.text);
    // A number may have more digits than this parser keeps.
    if (!value.ok() && walk.text.find_first_not_of("-+.eE0123456789") == std::string::npos)
      continue;
    ASSERT_TRUE(value.ok()) << walk.text;
    EXPECT_EQ(validate_json(schema, *value), "") << walk.text;
  }
  EXPECT_GT(ended, 0);
}

INSTANTIATE_TEST_SUITE_P(Schemas,
                         SchemaRewrite,
                         ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& one) {
                           return std::string(one.param.name);
                         });

TEST(SchemaRefusals, SayWhatToWriteInstead) {
  struct Refused {
    const char* schema;
    const char* instead;
  };
  for (const auto& [schema, instead] : {
           Refused{R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
                   "leave it out"},
           Refused{R"({"type":"object","properties":{"a":{}},"if":{"required":["a"]}})", "anyOf"},
           Refused{R"({"type":"object","properties":{"a":{}},"dependentRequired":{"a":["b"]}})",
                   "anyOf"},
           Refused{R"({"type":"array","contains":{"type":"integer"}})", "prefixItems"},
           Refused{R"({"type":"string","not":{"pattern":"^a"}})", "what is allowed"},
           Refused{R"({"type":"string","pattern":"^(?=.*[A-Z]).{8,}$"})", "list what may come"},
           Refused{R"({"type":"string","pattern":"(?<=a)b"})", "list what may come"},
           Refused{R"({"type":"string","pattern":"^\\P{L}+$"})", "list the characters"},
           Refused{R"({"type":"string","pattern":"^\\p{Klingon}+$"})", "\\p{L}"},
           Refused{
               R"({"allOf":[{"type":"string","pattern":"^a"},{"type":"string","pattern":"b$"}]})",
               "write one schema"},
           Refused{R"({"type":"integer","minimum":1e30})", "leave it out"},
           Refused{R"({"type":"string","format":"date","maxLength":5})", "leave out the lengths"},
           Refused{R"({"type":"string","format":"email","minLength":200})", "in place of format"},
       }) {
    const auto compiled = compiler().compile(Constraint::json_schema(schema));
    ASSERT_FALSE(compiled.ok()) << schema;
    EXPECT_EQ(compiled.error().reason, ErrorReason::unsupported_schema)
        << schema << compiled.error().message;
    EXPECT_NE(compiled.error().message.find(instead), std::string::npos)
        << schema << "\n"
        << compiled.error().message;
  }
}

TEST(SchemaRefusals, ContradictionsAreUnsatisfiable) {
  for (const char* schema :
       {R"({"allOf":[{"type":"string"},{"type":"integer"}]})",
        R"({"allOf":[{"const":1},{"const":2}]})", R"({"enum":["a"],"not":{"const":"a"}})",
        R"({"type":"integer","not":{}})", R"({"type":"null","not":{"type":"null"}})",
        R"({"allOf":[{"type":"integer","minimum":5},{"maximum":4}]})",
        R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"minItems":3})"}) {
    const auto compiled = compiler().compile(Constraint::json_schema(schema));
    ASSERT_FALSE(compiled.ok()) << schema;
    EXPECT_EQ(compiled.error().reason, ErrorReason::unsatisfiable_schema)
        << schema << compiled.error().message;
  }
}

TEST(SchemaRewriteRegex, RewritesExpressionsToo) {
  const auto compiled = compiler().compile(Constraint::regex("(?i)yes|no"));
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  EXPECT_TRUE(accepts(**compiled, "YES"));
  EXPECT_TRUE(accepts(**compiled, "nO"));
  EXPECT_FALSE(accepts(**compiled, "ja"));
}

TEST(SchemaRefusals, LongEnumsAreToldWhatToWrite) {
  std::string schema = R"({"enum":[)";
  for (int i = 0; i < 12'000; ++i)
    schema += (i > 0 ? ",\"value-" : "\"value-") + std::to_string(i) + '"';
  schema += "]}";
  const auto compiled = compiler().compile(Constraint::json_schema(schema));
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.error().reason, ErrorReason::grammar_too_complex);
  EXPECT_NE(compiled.error().message.find("as a pattern"), std::string::npos)
      << compiled.error().message;
}

}  // namespace
}  // namespace koho::testing
