// SPDX-License-Identifier: Apache-2.0
#include "chat/json.h"

#include <gtest/gtest.h>

namespace koho::chat {
namespace {

std::string round_trip(std::string_view text) {
  const Result<Json> value = parse_json(text);
  return value.ok() ? dump_json(*value) : "error: " + value.error().message;
}

TEST(Json, WritesAsPythonDoes) {
  EXPECT_EQ(round_trip(R"({"b":1,"a":[1,2,{}],"c":{"d":[]}})"),
            R"({"b": 1, "a": [1, 2, {}], "c": {"d": []}})");
  EXPECT_EQ(round_trip(R"("\u00e9\u0001\u007f\/\"\\\b\f\n\r\t<>&\ud83c\udf89")"),
            "\"é\\u0001\x7f/\\\"\\\\\\b\\f\\n\\r\\t<>&🎉\"");
  EXPECT_EQ(round_trip("[true,false,null]"), "[true, false, null]");
}

TEST(Json, KeepsNumbersAsPythonPrintsThem) {
  EXPECT_EQ(round_trip("[0,-0,1.0,-0.0,1e16,1e15,1e-5,0.0001,1E2,123456789012345678901234567890]"),
            "[0, 0, 1.0, -0.0, 1e+16, 1000000000000000.0, 1e-05, 0.0001, 100.0, "
            "123456789012345678901234567890]");
  EXPECT_EQ(round_trip("[-9223372036854775808,18446744073709551615,-9223372036854775809]"),
            "[-9223372036854775808, 18446744073709551615, -9223372036854775809]");
  EXPECT_TRUE(parse_json("12")->is_integer());
  EXPECT_FALSE(parse_json("12.0")->is_integer());
  EXPECT_FALSE(parse_json("1e30")->is_integer());
}

TEST(Json, ReadsValuesWithinTheirRange) {
  EXPECT_EQ(parse_json("-9223372036854775808")->as_integer(), INT64_MIN);
  EXPECT_EQ(parse_json("9223372036854775808")->as_integer(), std::nullopt);
  EXPECT_EQ(parse_json("1.0")->as_integer(), std::nullopt);
  EXPECT_EQ(parse_json("\"1\"")->as_integer(), std::nullopt);
  EXPECT_EQ(parse_json("1e-2")->as_number(), 0.01);
  EXPECT_EQ(parse_json("7")->as_number(), 7.0);
  EXPECT_EQ(parse_json("\"7\"")->as_number(), std::nullopt);
  const Json object = *parse_json(R"({"a":null,"b":0})");
  EXPECT_EQ(object.given("a"), nullptr);
  EXPECT_NE(object.given("b"), nullptr);
  EXPECT_EQ(object.given("c"), nullptr);
}

TEST(Json, KeepsNumbersGreaterThanAnyDoubleAsTheyAreWritten) {
  const std::string nines(400, '9');
  const std::string text =
      R"({"a\"1e999": [1e999, 2, -1E+400, "1e999", 0.1e-999], "b": )" + nines + "}";
  EXPECT_EQ(dump_json(*parse_json(text)),
            R"({"a\"1e999": [1e999, 2, -1E+400, "1e999", 0.0], "b": )" + nines + "}");
  EXPECT_EQ(parse_json("1e999")->as_number(), std::nullopt);
  EXPECT_FALSE(parse_json("1E999")->is_integer());
  EXPECT_TRUE(parse_json(nines)->is_integer());
  EXPECT_FALSE(parse_json(std::string(5000, '9')).ok());
  const auto skips_a = [](std::string_view name) { return name != "a"; };
  EXPECT_EQ(dump_json(*parse_json(R"({"a":[1e999],"b":[3,1e998]})", {.needs = skips_a})),
            R"({"a": null, "b": [3, 1e998]})");
  for (const char* wrong : {"[1e999,]", "[1e999x]", "[1e]", "[1e999.5]", "[-]", "[1e999-1]"})
    EXPECT_FALSE(parse_json(wrong).ok()) << wrong;
}

TEST(Json, KeepsEveryNumberIfAsked) {
  for (const auto& [text, kept] : std::initializer_list<std::pair<std::string, std::string>>{
           {"0.1e-999", "0.1e-999"},
           {"-1E-400", "-1E-400"},
           {"0.12345678901234567890", "0.12345678901234567890"},
           {"9007199254740993.0", "9007199254740993.0"},
           {"12345678901234567890", "12345678901234567890"},
           {std::string(5000, '9'), std::string(5000, '9')},
           {"1E400", "1E400"},
           {"-0.0", "-0.0"},
           {"1.50", "1.5"},
           {"1e5", "100000.0"},
           {"2E-7", "2e-07"},
           {"0e999", "0.0"}})
    EXPECT_EQ(dump_json(*parse_json(text, {.exact_numbers = true})), kept) << text;
}

TEST(Json, RefusesValuesThatItCannotKeep) {
  for (const char* text : {"", "{", "[1,]", "01", "NaN", "Infinity", "1e999x", "\"\\ud800\"",
                           "\"\xff\"", "{\"a\":1}x", "'a'", "{\"a\":1,\"a\":2}"})
    EXPECT_FALSE(parse_json(text).ok()) << text;
  EXPECT_NE(parse_json(R"({"x":{"a":1,"b":2,"a":3}})").error().message.find("duplicate key \"a\""),
            std::string::npos);
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":2}])").ok());
}

TEST(Json, AnErrorContainsThePlaceButNotTheText) {
  const auto told = [](const std::string& text) { return parse_json(text).error().message; };
  const std::string secret(100'000, 's');
  EXPECT_EQ(told("{\"a\": \"sss\\q\"}"),
            "not valid JSON: parse error at line 1, column 12: syntax error while parsing value - "
            "invalid string: forbidden character after backslash");
  for (const std::string& text :
       {"[\"" + secret + "\\q\"]", "[\"" + secret, "[\"" + secret + "\n\"]", "[t" + secret + "]",
        "{\"a\":1} \"" + secret + "\\q", "[\"; last read: '" + secret + "\\q\"]",
        "[1" + std::string(4000, '0') + ".0e1x]", "[\"; expected " + secret + "\\ud800\"]",
        "{\"" + secret + "\":1,\"" + secret + "\":2}"}) {
    const std::string message = told(text);
    EXPECT_LT(message.size(), 220U) << message.substr(0, 400);
    EXPECT_EQ(message.find(std::string(50, 's')), std::string::npos);
    EXPECT_EQ(message.find("last read"), std::string::npos);
  }
  // The message still says what the parser expected.
  EXPECT_NE(told("{\"a\" 1}").find("expected ':'"), std::string::npos) << told("{\"a\" 1}");
  EXPECT_NE(told("[1 tr]").find("; expected ']'"), std::string::npos) << told("[1 tr]");
}

TEST(Json, ALoneSurrogateIsFoundByItsField) {
  const auto told = [](std::string_view text) {
    const std::string message = parse_json(text).error().message;
    return message.substr(0, message.find(": parse error"));
  };
  EXPECT_EQ(told(R"({"n":1,"messages":[{},{"role":"user","content":"\ud800"}]})"),
            "messages[1].content: not valid JSON");
  EXPECT_EQ(told(R"({"stop":["a","\udc00"]})"), "stop[1]: not valid JSON");
  EXPECT_EQ(told(R"({"a":{"b":0,"\ud800":1}})"), "a: not valid JSON");
  EXPECT_EQ(told(R"("\ud800")"), "not valid JSON");
  EXPECT_EQ(parse_json(R"({"stop":["a","\udc00"]})").error().field, "stop[1]");
  EXPECT_EQ(told(R"({"a":"surrogate \q"})"), "not valid JSON");
}

TEST(Json, ALoneSurrogateIsToldFromABadEscape) {
  using enum ErrorReason;
  const auto reason = [](std::string_view string) {
    return parse_json("{\"a\":\"" + std::string(string)).error().reason;
  };
  for (const char* lone :
       {R"(\ud800"})", R"(\uDBFF)", R"(\ud800x"})", R"(\ud800\n"})", R"(\ud800\u0041"})",
        R"(\ud800\ud800"})", R"(\ud83d\ude00\udead"})", R"(\\\udfff"})", R"(\"\u00e9\ud800")"})
    EXPECT_EQ(reason(lone), invalid_encoding) << lone;
  for (const char* bad : {R"(\ud800\u"})", R"(\ud800\u00g0"})", R"(\ud83d\ude00\q"})", R"(\\ud800)",
                          R"(\ud8"})", R"(\ud83d\ude00)", R"(\u+d80"})"})
    EXPECT_EQ(reason(bad), none) << bad;
  EXPECT_EQ(parse_json(R"({"a" "\ud83d\ude00"})").error().reason, none);
}

TEST(Json, RefusesAZeroByteAnywhere) {
  for (const std::string& text :
       {std::string("1\0x", 3), std::string("{}\0", 3), std::string("\0", 1)})
    EXPECT_FALSE(parse_json(text).ok());
}

TEST(Json, BoundsDepthKeysAndDigits) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(65, '[') + std::string(65, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(1000000, '[')).ok());
  std::string object = "{";
  for (int i = 0; i < static_cast<int>(kJsonKeysMax); ++i)
    object += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_TRUE(parse_json(object + "}").ok());
  EXPECT_FALSE(parse_json(object + ",\"x\":0}").ok());
}

TEST(Json, FindsAndSetsKeysInOrder) {
  Json object = *parse_json(R"({"a":1,"b":2})");
  object.set("b", Json::string("x"));
  object.set("c", Json{});
  EXPECT_EQ(dump_json(object), R"({"a": 1, "b": "x", "c": null})");
  EXPECT_EQ(object.find("d"), nullptr);
  EXPECT_EQ(object.find("a")->find("b"), nullptr);
}

}  // namespace
}  // namespace koho::chat
