// SPDX-License-Identifier: Apache-2.0
#include "chat/tool_schema.h"

#include <string>

#include <gtest/gtest.h>

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
