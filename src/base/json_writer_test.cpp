// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace koho {
namespace {

std::string float_text(float value) {
  std::string out;
  append_json_float(out, value);
  return out;
}

TEST(JsonWriter, EscapesAsPythonDoes) {
  EXPECT_EQ(json_string("a\"b\\c\n\r\t\b\f\x01\x7f/ü"),
            "\"a\\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\x7f/ü\"");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(JsonWriter, EscapesOfPiecesAreTheEscapesOfTheWhole) {
  std::string pieces;
  append_json_escaped(pieces, "a\"");
  append_json_escaped(pieces, "\nb");
  EXPECT_EQ('"' + pieces + '"', json_string("a\"\nb"));
}

TEST(JsonWriter, WritesTheShortestFloatThatReadsBack) {
  EXPECT_EQ(float_text(0.1F), "0.1");
  EXPECT_EQ(float_text(-1.5F), "-1.5");
  EXPECT_EQ(float_text(std::numeric_limits<float>::infinity()), "null");
  EXPECT_EQ(float_text(std::numeric_limits<float>::quiet_NaN()), "null");
}

TEST(JsonWriter, WritesAValueWithoutBlanks) {
  const std::string text = R"({"a":[1,-2.5,"x\ny",null,true],"b":{},"c":[]})";
  Result<json::Value> value = json::parse(text);
  ASSERT_TRUE(value.ok());
  std::string out;
  append_json_value(out, *value);
  EXPECT_EQ(out, text);
}

}  // namespace
}  // namespace koho
