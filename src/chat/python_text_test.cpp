// SPDX-License-Identifier: Apache-2.0
#include "chat/python_text.h"

#include <gtest/gtest.h>

#include "chat/json.h"

namespace koho::chat {
namespace {

TEST(PythonText, StripsUnicodeWhitespaceAndNothingElse) {
  EXPECT_EQ(python_strip(" \t\n\x1c\x1f\xc2\x85\xc2\xa0\xe3\x80\x80 a \xe2\x80\xa8\xe1\x9a\x80"),
            "a");
  EXPECT_EQ(python_strip("\xe2\x80\x8b a\xe2\x80\x8b"),
            "\xe2\x80\x8b a\xe2\x80\x8b");  // U+200B stays
  EXPECT_EQ(python_strip(" \xe3\x80\x80 "), "");
  EXPECT_EQ(python_strip(""), "");
  EXPECT_EQ(strip_newlines_left("\n\n a\n"), " a\n");
  EXPECT_EQ(strip_newlines_right("a \n\n"), "a ");
  EXPECT_EQ(strip_newlines_left("\n"), "");
  EXPECT_EQ(strip_newlines_right("\n"), "");
}

TEST(PythonText, PrintsFloatsAsReprDoes) {
  EXPECT_EQ(python_float(1.0), "1.0");
  EXPECT_EQ(python_float(-0.0), "-0.0");
  EXPECT_EQ(python_float(0.1), "0.1");
  EXPECT_EQ(python_float(1e16), "1e+16");
  EXPECT_EQ(python_float(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(python_float(1e-5), "1e-05");
  EXPECT_EQ(python_float(0.00012), "0.00012");
  EXPECT_EQ(python_float(-1.5e-7), "-1.5e-07");
  EXPECT_EQ(python_float(5e-324), "5e-324");
  EXPECT_EQ(python_float(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(python_float(123.456), "123.456");
}

TEST(PythonText, PrintsValuesAsStrDoes) {
  EXPECT_EQ(python_str(*parse_json(
                R"([null,true,"it's","q\"","it's \"q\"","\n\u0000\u007f\u0085é\u200b\\"])")),
            R"([None, True, "it's", 'q"', 'it\'s "q"', '\n\x00\x7f\x85é\u200b\\'])");
  EXPECT_EQ(python_str(*parse_json(R"({"a":{},"b":[1.0,10]})")), "{'a': {}, 'b': [1.0, 10]}");
  EXPECT_EQ(python_str(Json::string("it's")), "it's");
}

}  // namespace
}  // namespace koho::chat
