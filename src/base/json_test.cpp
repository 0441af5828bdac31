// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <string>

#include <gtest/gtest.h>

#include "base/printable.h"

namespace koho {
namespace {

TEST(Json, ReadsEveryKind) {
  const Result<json::Value> value = json::parse(
      R"( {"n":null,"b":true,"i":-12,"r":1.5,"e":2e3,"s":"a\u00e9\n","a":[1,[2]],"o":{"x":{}}} )");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_EQ(value->kind(), json::Kind::object);
  EXPECT_TRUE(value->find("n")->is_null());
  EXPECT_EQ(value->find("b")->boolean(), true);
  EXPECT_EQ(value->find("i")->integer(), -12);
  EXPECT_EQ(value->find("i")->number(), -12.0);
  EXPECT_EQ(value->find("r")->number(), 1.5);
  EXPECT_FALSE(value->find("r")->integer());
  EXPECT_EQ(value->find("e")->number(), 2000.0);
  EXPECT_FALSE(value->find("e")->integer());
  EXPECT_EQ(*value->find("s")->string(), "a\xC3\xA9\n");
  ASSERT_EQ(value->find("a")->array()->size(), 2U);
  EXPECT_EQ((*(*value->find("a")->array())[1].array())[0].integer(), 2);
  EXPECT_EQ(value->find("o")->object()->front().name, "x");
  EXPECT_EQ(value->find("absent"), nullptr);
  EXPECT_FALSE(value->find("s")->boolean());
}

TEST(Json, IntegersAreExactAndBounded) {
  EXPECT_EQ(json::parse("9223372036854775807")->integer(), INT64_MAX);
  EXPECT_EQ(json::parse("-9223372036854775808")->integer(), INT64_MIN);
  for (const char* text : {"9223372036854775808", "18446744073709551616", "-9223372036854775809",
                           "123456789012345678901234567890"}) {
    const Result<json::Value> value = json::parse(text);
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_NE(value.error().message.find("64 bits"), std::string::npos) << value.error().message;
  }
}

TEST(Json, RefusesWhatIsNotStrict) {
  const std::string cases[] = {"",
                               " ",
                               "{",
                               "[1,]",
                               "{\"a\":1,}",
                               "{a:1}",
                               "'a'",
                               "nul",
                               "NaN",
                               "Infinity",
                               "01",
                               "+1",
                               "1.",
                               ".5",
                               "1e",
                               "1e999",
                               "[1] [2]",
                               "[1]x",
                               "\"\t\"",
                               "\"\\x41\"",
                               "\"\\ud800\"",
                               "// c\n1",
                               "/* c */1",
                               "\"abc",
                               "\"\xFF\"",
                               "\"\xC0\x80\"",
                               "\"\xED\xA0\x80\"",
                               "\"\xF5\x80\x80\x80\"",
                               "\xEF\xBB\xBF{}",
                               "\xFE\xFF",
                               std::string("{}\0", 3),
                               std::string("{}\0{}", 5),
                               std::string("\"a\0b\"", 5),
                               std::string("\0", 1)};
  for (const std::string& text : cases) {
    const Result<json::Value> value = json::parse(text);
    ASSERT_FALSE(value.ok()) << printable(text);
    EXPECT_EQ(value.error().code, ErrorCode::corrupt_data);
    EXPECT_EQ(printable(value.error().message, 10'000), value.error().message);
  }
}

TEST(Json, RefusesAKeyTwiceInTheSameObject) {
  EXPECT_FALSE(json::parse(R"({"a":1,"b":2,"a":3})").ok());
  EXPECT_FALSE(json::parse(R"({"x":{"a":1,"\u0061":3}})").ok());
  EXPECT_TRUE(json::parse(R"({"a":{"a":1},"b":{"a":1}})").ok());
}

TEST(Json, BoundsDepthAndTokens) {
  const json::Limits limits{.depth_max = 3, .string_bytes_max = 8};
  EXPECT_TRUE(json::parse("[[[1]]]", limits).ok());
  EXPECT_FALSE(json::parse("[[[[1]]]]", limits).ok());
  EXPECT_FALSE(json::parse("{\"a\":{\"b\":{\"c\":[]}}}", limits).ok());
  EXPECT_TRUE(json::parse("\"12345678\"", limits).ok());
  EXPECT_FALSE(json::parse("\"123456789\"", limits).ok());
  EXPECT_FALSE(json::parse("{\"123456789\":1}", limits).ok());
  EXPECT_TRUE(json::parse("[\"1234\",\"\\\"67\"]", limits).ok());
  EXPECT_FALSE(json::parse(std::string(600, '1')).ok());
  EXPECT_FALSE(json::parse(std::string(100'000, '[')).ok());
}

TEST(Printable, ShowsWhatWouldSteerATerminal) {
  EXPECT_EQ(printable("plain é 漢 🎉"), "plain é 漢 🎉");
  EXPECT_EQ(printable("a\x1B[31m\n\x7F"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"), "\\xc2\\x9b");
  EXPECT_EQ(printable("\xFF\xC3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xED\xA0\x80\xC0\x80"), "\\xed\\xa0\\x80\\xc0\\x80");
  EXPECT_EQ(printable("abcdef", 3), "abc…");
}

}  // namespace
}  // namespace koho
