// SPDX-License-Identifier: Apache-2.0
// Compares the renderings of the chat templates byte by byte with those of jinja2.
#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "chat/json.h"
#include "chat/message.h"
#include "chat/template.h"
#include "chat/template_choice.h"

namespace koho::chat {
namespace {

const std::filesystem::path kData = std::filesystem::path(KOHO_SOURCE_DIR) / "tests/chat/data";

std::string read_data(const char* name) {
  Result<std::string> text = read_file(kData / name, 16U << 20U);
  EXPECT_TRUE(text.ok()) << (text.ok() ? "" : text.error().message);
  return text.ok() ? *text : std::string();
}

/// Renders `input` and compares with `expected`: jinja2's text, or null where jinja2 raises an
/// error.
void expect_rendering(const Json& input, TemplateStyle style, const Json& expected) {
  const Result<Conversation> conversation = read_conversation(input);
  ASSERT_TRUE(conversation.ok()) << conversation.error().message;
  const Result<Prompt> prompt = render(*conversation, style);
  if (expected.is_null()) {
    EXPECT_FALSE(prompt.ok());
    return;
  }
  ASSERT_TRUE(prompt.ok()) << prompt.error().message;
  EXPECT_EQ(prompt->text(), expected.text);
}

TEST(TemplateGolden, EqualsTheSixteenRenderedCases) {
  const Result<Json> cases = parse_json(read_data("rendered_cases.json"));
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  ASSERT_EQ(cases->items.size(), 16U);
  for (const Json& one : cases->items) {
    SCOPED_TRACE(one.find("name")->text);
    const Json& rendered = *one.find("rendered");
    expect_rendering(*one.find("input"), TemplateStyle::glm_4_7, *rendered.find("glm-4.7"));
    expect_rendering(*one.find("input"), TemplateStyle::glm_4_6, *rendered.find("glm-4.6"));
  }
}

TEST(TemplateGolden, EqualsJinjaOnGeneratedConversations) {
  const std::string text = read_data("generated_cases.jsonl");
  std::size_t num_cases = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    const Result<Json> one = parse_json(std::string_view(text).substr(begin, end - begin));
    ASSERT_TRUE(one.ok()) << one.error().message;
    SCOPED_TRACE(::testing::Message() << "line " << num_cases + 1);
    expect_rendering(*one->find("input"), TemplateStyle::glm_4_7, *one->find("glm-4.7"));
    expect_rendering(*one->find("input"), TemplateStyle::glm_4_6, *one->find("glm-4.6"));
    ++num_cases;
    begin = end + 1;
  }
  EXPECT_GE(num_cases, 500U);
}

TEST(TemplateGolden, KnowsTheTemplatesItIsComparedWith) {
  const TemplateChoice of_4_7 = choose_template(read_data("glm-4.7.jinja"), {});
  EXPECT_EQ(of_4_7.style, TemplateStyle::glm_4_7);
  EXPECT_EQ(of_4_7.warning, "");
  const TemplateChoice of_4_6 = choose_template(read_data("glm-4.6.jinja"), {});
  EXPECT_EQ(of_4_6.style, TemplateStyle::glm_4_6);
  EXPECT_EQ(of_4_6.warning, "");
}

}  // namespace
}  // namespace koho::chat
