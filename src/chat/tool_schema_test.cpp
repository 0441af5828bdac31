// SPDX-License-Identifier: Apache-2.0
#include "chat/tool_schema.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "chat/tool_value.h"

namespace koho::chat {
namespace {

TEST(ToolSchemas, ARecursiveSchemaEnds) {
  // Each level refers twice to the next: 2^40 paths.
  std::string defs;
  for (int i = 0; i < 40; ++i) {
    const std::string next = "{\"$ref\":\"#/$defs/" + std::to_string((i + 1) % 40) + "\"}";
    defs +=
        (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{\"anyOf\":[" + next + "," + next + "]}";
  }
  const ToolSchemas tools({*parse_json(R"({"name":"f","parameters":{"$defs":{)" + defs +
                                       R"(},"properties":{"x":{"$ref":"#/$defs/0"}}}})")});
  EXPECT_TRUE(tools.argument_types("f", "x").is_any());
}

TEST(ToolSchemas, FindsTheLongestName) {
  const ToolSchemas tools(
      parse_json(R"([{"name":"get"},{"name":"get_all"},{"name":""},{"x":1},3])")->items);
  EXPECT_EQ(tools.name_at_start("get_all_x"), "get_all");
  EXPECT_EQ(tools.name_at_start("get_x"), "get");
  EXPECT_EQ(tools.name_at_start("ge"), "");
  EXPECT_FALSE(tools.has(""));
  EXPECT_TRUE(ToolSchemas(parse_json("[3,{}]")->items).empty());
}

TEST(ToolSchemas, AllowsWhatASchemaDoes) {
  struct Case {
    const char* schema;
    std::vector<const char*> valid;
    std::vector<const char*> invalid;
  };
  const Case cases[] = {
      {"{}", {"1", "null", "[[]]"}, {}},
      {"true", {"1"}, {}},
      {"false", {}, {"1"}},
      {R"({"type":["string","integer"],"minimum":5,"exclusiveMaximum":8})",
       {"5", "7.0", "\"1\""},
       {"4", "8", "5.5", "true"}},
      {R"({"type":"integer","multipleOf":3})", {"0", "-9"}, {"4"}},
      {R"({"enum":["7",5,[1,{"a":null}]]})", {"5.0", "\"7\"", R"([1,{"a":null}])"}, {"7", "[1]"}},
      {R"({"const":{"a":1,"b":2}})", {R"({"b":2,"a":1.0})"}, {R"({"a":1})", "{}"}},
      {R"({"type":"string","minLength":2,"maxLength":2})", {"\"éa\""}, {"\"é\"", "\"abc\""}},
      {R"({"type":"array","items":{"type":"string"},"minItems":1})",
       {R"(["a"])"},
       {"[]", "[1]", R"(["a",null])"}},
      {R"({"type":"array","prefixItems":[{"const":1}],"items":false})",
       {"[]", "[1]"},
       {"[2]", "[1,1]"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a"],
           "additionalProperties":{"type":"integer"}})",
       {R"({"a":null})", R"({"a":null,"b":1})"},
       {"{}", R"({"a":1})", R"({"a":null,"b":"x"})"}},
      {R"({"$ref":"#/$defs/List%5Bint%5D"})", {"[1]"}, {"1", R"(["1"])"}},
      {R"({"oneOf":[{"$ref":"#/$defs/s"},{"type":"integer","minimum":5}]})",
       {"\"1\"", "5"},
       {"1", "\"3\"", "null"}},
      {R"({"allOf":[{"type":"integer"},{"maximum":3}]})", {"3"}, {"4"}},
      {R"({"type":"number","minimum":9007199254740993})", {"9007199254740992"}, {"1"}},
      {R"({"type":["string","integer"],"not":{"enum":[5,"x"]}})", {"4", "\"5\""}, {"5.0", "\"x\""}},
      {R"({"not":{"anyOf":[{"type":"null"},{"type":"object","required":["a"]}]}})",
       {"1", "{}"},
       {"null", R"({"a":1})"}},
      {R"({"anyOf":[{"type":"string"},{"type":"array","items":{"enum":[1,2]},"uniqueItems":true}]})",
       {"[]", "[2,1]", "\"[1,1]\""},
       {"[1,1]", "[2,1,2.0]"}},
      {R"({"not":{"not":{"type":["string","null"]}}})", {"\"1\"", "null"}, {"1"}},
      {R"({"type":"object","propertyNames":{"enum":["a"]}})", {R"({"a":1})"}, {R"({"b":1})"}},
      {R"({"type":"object","properties":{"a":{}},"unevaluatedProperties":false})",
       {R"({"a":1})"},
       {R"({"b":1})"}},
  };
  for (const Case& one : cases) {
    const ToolSchemas tools({*parse_json(
        R"({"name":"f","parameters":{"$defs":{"s":{"enum":["1","2"]},"List[int]":{"type":"array",)"
        R"("items":{"type":"integer"}}},"properties":{"x":)" +
        std::string(one.schema) + "}}}")});
    for (const char* value : one.valid)
      EXPECT_TRUE(tools.allows("f", "x", *parse_json(value))) << one.schema << value;
    for (const char* value : one.invalid)
      EXPECT_FALSE(tools.allows("f", "x", *parse_json(value))) << one.schema << value;
    EXPECT_TRUE(tools.allows("f", "y", Json()) && tools.allows("g", "x", Json()));
  }
}

/// The first declaration counted, and a text of digits that the others make a string was a number.
TEST(ToolSchemas, EachDeclarationOfAnArgumentHolds) {
  for (const char* parameters :
       {R"({"allOf":[{"properties":{"x":{}}},{"properties":{"x":{"type":"string"}}}]})",
        R"({"properties":{"x":{"description":"x"}},"$ref":"#/$defs/s",
            "$defs":{"s":{"properties":{"x":{"type":"string"}}}}})",
        R"({"properties":{"x":{"type":["string","integer"]}},
            "allOf":[{"properties":{"x":{"type":["string","null"]}}}]})",
        R"({"properties":{"y":{}},"additionalProperties":{"type":"string"},
            "allOf":[{"properties":{"x":{}}}]})"}) {
    const ToolSchemas tools(
        {*parse_json(fmt::format(R"({{"name":"f","parameters":{}}})", parameters))});
    EXPECT_EQ(tools.argument_types("f", "x"), TypeSet(TypeSet::string)) << parameters;
    EXPECT_FALSE(tools.allows("f", "x", *parse_json("5"))) << parameters;
  }
}

/// What a walk did not reach could be any value: a string of digits was a number.
TEST(ToolSchemas, LongSchemasAreReadToTheirEnds) {
  std::string definitions = R"("d0":{"type":"string"})";
  for (int i = 1; i <= 1000; ++i)
    definitions += fmt::format(R"(,"d{}":{{"$ref":"#/$defs/d{}"}})", i, i - 1);
  std::string choices = R"({"const":"0"})";
  for (int i = 1; i < 4000; ++i) choices += fmt::format(R"(,{{"const":"{}"}})", i);
  const ToolSchemas tools({*parse_json(fmt::format(
      R"({{"name":"f","parameters":{{"$defs":{{{}}},"properties":{{
          "x":{{"$ref":"#/$defs/d1000"}},"y":{{"anyOf":[{}]}}}}}}}})",
      definitions, choices))});
  EXPECT_EQ(tools.argument_types("f", "x"), TypeSet(TypeSet::string));
  EXPECT_EQ(tools.argument_types("f", "y"), TypeSet(TypeSet::string));
}

/// A list that is read at each of 900 references took seconds.
TEST(ToolSchemas, AListReadOftenTakesMilliseconds) {
  std::string list = "\"a\"";
  for (int i = 0; i < 60'000; ++i) list += "," + std::to_string(i) + ".5";
  std::string references = R"({"type":"string"})";
  for (int i = 0; i < 900; ++i) references += R"(,{"$ref":"#/$defs/l"})";
  const ToolSchemas tools({*parse_json(R"({"name":"f","parameters":{"$defs":{"l":{"enum":[)" +
                                       list + R"(]}},"properties":{"x":{"anyOf":[)" + references +
                                       R"(]},"y":{"items":{"$ref":"#/$defs/l"}}}}})")});
  std::string items = "[60000";
  for (int i = 0; i < 900; ++i) items += ",59999.5";
  const Json value = *parse_json(items + "]");
  const std::int64_t begin = thread_ns();
  EXPECT_TRUE(tools.argument_types("f", "x").has(TypeSet::string));
  EXPECT_TRUE(tools.allows("f", "x", *parse_json("1e9")));
  tools.allows("f", "y", value);
  EXPECT_LT(thread_ns() - begin, 1'000'000'000);
}

/// The text of a long answer was counted at each of 900 choices.
TEST(ToolSchemas, ATextReadOftenTakesMilliseconds) {
  std::string choices = R"({"type":"integer"})";
  for (int i = 0; i < 900; ++i) choices += R"(,{"type":"string","minLength":9999999})";
  const ToolSchemas tools({*parse_json(R"({"name":"f","parameters":{"properties":{"x":{"anyOf":[)" +
                                       choices + "]}}}}")});
  const Json text = Json::string(std::string(4'000'000, 'a'));
  const std::int64_t begin = thread_ns();
  EXPECT_TRUE(tools.allows("f", "x", text));  // beyond the bound
  EXPECT_LT(thread_ns() - begin, 1'000'000'000);
}

/// A list longer than what a walk compares made a string of digits a number.
TEST(ToolSchemas, AListTooLongToReadLeavesTheTypeBesideIt) {
  std::string list = "\"1\"";
  for (int i = 0; i < 70'000; ++i) list += ",\"" + std::to_string(i) + "\"";
  const ToolSchemas tools(
      {*parse_json(R"({"name":"f","parameters":{"properties":{"x":{"type":"string","enum":[)" +
                   list + "]}}}}")});
  EXPECT_EQ(tools.argument_types("f", "x"), TypeSet(TypeSet::string));
}

/// A strict tool's "1" was the number 1, which its schema does not allow.
TEST(ToolValue, ATextThatIsNoValidValueIsAString) {
  const auto five = [](const Json& value) { return value.is_string() || value.text == "5"; };
  const TypeSet types = TypeSet(TypeSet::string) | TypeSet::integer;
  EXPECT_EQ(value_to_json("5", types, five), "5");
  EXPECT_EQ(value_to_json("1", types, five), "\"1\"");
  EXPECT_EQ(value_to_json(" 1", types, five), "\" 1\"");
  EXPECT_EQ(value_to_json("1", types), "1");
  EXPECT_EQ(value_to_json("1", TypeSet::integer, five), "1");  // no string is allowed
  EXPECT_EQ(value_to_json("1", TypeSet::kAny, five), "\"1\"");
  EXPECT_EQ(value_to_json("5", TypeSet::kAny, five), "5");
}

/// A strict tool's object that names a member twice was a string.
TEST(ToolValue, OfAMemberThatComesTwiceTheLastCounts) {
  for (const auto& [text, told] :
       {std::pair{R"({"a":true,"b":1,"a":false})", R"({"b": 1, "a": false})"},
        std::pair{R"([{"a":{"c":1e999,"c":null},"a":{}}])", R"([{"a": {}}])"}})
    EXPECT_EQ(value_to_json(text, TypeSet(TypeSet::object) | TypeSet::array), told);
}

/// What a strict tool's grammar takes for a number was a string, or another number.
TEST(ToolValue, ANumberIsTheOneThatWasWritten) {
  const std::string nines(400, '9');
  const TypeSet number = TypeSet::kNumber;
  const TypeSet integer = TypeSet::integer;
  const TypeSet list = TypeSet::array;
  for (const auto& [types, text, told] :
       std::initializer_list<std::tuple<TypeSet, std::string, std::string>>{
           {number, "1e999", "1e999"},
           {number, "-1E400", "-1E400"},
           {number, "0.1e-999", "0.1e-999"},
           {number, "0.12345678901234567890", "0.12345678901234567890"},
           {number, "1.50", "1.5"},
           {number, "-0", "0"},
           {number, "-0.0", "-0.0"},
           {number, nines, nines},
           {integer, "12345678901234567890", "12345678901234567890"},
           {integer, "-98765432109876543210", "-98765432109876543210"},
           {integer, std::string(5000, '9'), std::string(5000, '9')},
           {integer, "0.1e-999", "\"0.1e-999\""},
           {integer, "3.0", "3"},
           {number | TypeSet::string, "1e999", "1e999"},
           {list, "[1e999, 1, -1e-400]", "[1e999, 1, -1e-400]"}})
    EXPECT_EQ(value_to_json(text, types), told) << text;
  const ToolSchemas tools({*parse_json(R"({"name":"f","parameters":{"properties":{
      "few":{"type":["number","string"],"maximum":5},"one":{"enum":[1e999,"1e998"]}}}})")});
  EXPECT_FALSE(tools.allows("f", "few", *parse_json("1e999")));
  EXPECT_TRUE(tools.allows("f", "few", *parse_json("-1e999")));
  EXPECT_TRUE(tools.allows("f", "one", *parse_json("10e998")));
  EXPECT_FALSE(tools.allows("f", "one", *parse_json("1e998")));
}

/// A free tool's answer may be neither: an object without a member is still no string.
TEST(ToolValue, AnInvalidValueKeepsItsTypeWhereNoStringIsValid) {
  const ToolSchemas tools({*parse_json(R"({"name":"f","parameters":{"properties":{
      "choice":{"anyOf":[{"const":"auto"},{"type":"object","properties":{"name":{"type":"string"}},
                                           "required":["name"]}]},
      "size":{"oneOf":[{"enum":["small","large"]},{"type":"integer","minimum":5}]},
      "flag":{"anyOf":[{"enum":["auto"]},{"const":true}]},
      "text":{"anyOf":[{"type":"string","maxLength":2},{"type":"array","maxItems":1}]}}}})")});
  const auto read = [&](const char* key, const char* text) {
    return value_to_json(text, tools.argument_types("f", key),
                         [&](const Json& value) { return tools.allows("f", key, value); });
  };
  EXPECT_EQ(read("choice", R"({"nam": "x"})"), R"({"nam": "x"})");
  EXPECT_EQ(read("choice", "auto"), "\"auto\"");
  EXPECT_EQ(read("size", "1"), "1");
  EXPECT_EQ(read("flag", "false"), "false");
  EXPECT_EQ(read("text", "[1, 2]"), "[1, 2]");
  EXPECT_EQ(read("text", "[]"), "[]");
}

TEST(ToolValue, ReadsPythonLiteralsAndNothingElse) {
  const auto read = [](std::string_view text) {
    const std::optional<Json> value = parse_python_literal(text);
    return value ? dump_json(*value) : "none";
  };
  EXPECT_EQ(read(" {'a': [1, -2.50, None,], \"b\": ('x', (True))} "),
            R"({"a": [1, -2.5, null], "b": ["x", true]})");
  EXPECT_EQ(read(R"('\U0001f389\x41\'\"\\')"), R"("🎉A'\"\\")");
  EXPECT_EQ(read("()"), "[]");
  for (const char* text :
       {"",    "true",  "nan",       "inf",    "01",     "1_0",   "0x1", "'''a'''",
        "'a",  "'a\n'", "b'a'",      "[1 2]",  "{1: 2}", "{'a'}", "f()", "[",
        "[,]", "1 2",   "'\\ud800'", "'\\x4'", "--1",    "1e999"})
    EXPECT_EQ(read(text), "none") << text;
  EXPECT_EQ(read(std::string(100000, '[')), "none");
}

}  // namespace
}  // namespace koho::chat
