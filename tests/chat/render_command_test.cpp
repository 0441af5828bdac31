// SPDX-License-Identifier: Apache-2.0
// Runs the command `koho render`: requests on standard input, prompts on standard output, errors
// with the number of the line.
#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "tests/support/command_test.h"

namespace koho::chat {
namespace {

namespace fs = std::filesystem;
using testing::Ran;

class RenderCommand : public testing::CommandTest {
 protected:
  Ran render(const std::string& flags, std::string_view input) const {
    return koho("render " + flags, input);
  }
};

constexpr const char* kHi =
    R"({"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true})";

TEST_F(RenderCommand, PrintsAPromptALineByTheModelsTemplate) {
  const Result<std::string> text =
      read_file(fs::path(KOHO_SOURCE_DIR) / "tests/chat/data/glm-4.6.jinja", 1U << 20U);
  ASSERT_TRUE(text.ok());
  write("chat_template.jinja", *text);
  const Ran ran = render("--model .", std::string(kHi) + "\n" + R"({"messages":[]})");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.output, "\"[gMASK]<sop><|user|>\\nHi<|assistant|>\"\n\"[gMASK]<sop>\"\n");
  EXPECT_EQ(ran.errors, "");
}

TEST_F(RenderCommand, ReadsTheTemplateOfTokenizerConfigToo) {
  const Result<std::string> text =
      read_file(fs::path(KOHO_SOURCE_DIR) / "tests/chat/data/glm-4.7.jinja", 1U << 20U);
  ASSERT_TRUE(text.ok());
  std::string config =
      R"({"chat_template":[{"name":"x","template":"y"},{"name":"default","template":)";
  append_json_string(config, *text);
  write("tokenizer_config.json", config + "}]}");
  const Ran ran = render("--model .", kHi);
  EXPECT_EQ(ran.output, "\"[gMASK]<sop><|user|>Hi<|assistant|><think>\"\n");
  EXPECT_EQ(ran.errors, "");
}

TEST_F(RenderCommand, ABlankLineIsAnErrorThatNamesIt) {
  for (const char* blank : {"", " \r"}) {
    const Ran ran = render("--chat-template glm-4.7", std::string(kHi) + "\n" + blank + "\n" + kHi);
    EXPECT_NE(ran.exit_code, 0);
    EXPECT_NE(ran.errors.find("line 2: "), std::string::npos) << ran.errors;
  }
}

TEST_F(RenderCommand, DamagedTemplateFilesAreErrors) {
  write("chat_template.jinja", "{{ messages }}\xFF");
  EXPECT_NE(render("--model .", kHi).errors.find("chat_template.jinja is not UTF-8 at byte 14"),
            std::string::npos);
  write("chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(render("--model .", kHi).exit_code, 0);
  write("tokenizer_config.json", "{");
  EXPECT_NE(render("--model .", kHi).errors.find("tokenizer_config.json: "), std::string::npos)
      << "also where chat_template.jinja is the template";
}

TEST_F(RenderCommand, WarnsOfAnUnknownTemplate) {
  write("chat_template.jinja", "{{ messages }}");
  const Ran ran = render("--model .", kHi);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.output, "\"[gMASK]<sop><|user|>Hi<|assistant|><think>\"\n");
  EXPECT_NE(ran.errors.find("is not one that koho is verified against"), std::string::npos);
  EXPECT_EQ(render("--model . --chat-template glm-4.6", kHi).errors, "");
}

TEST_F(RenderCommand, NormalizesWhenAsked) {
  const char* request =
      R"({"messages":[{"role":"developer","content":"d"},{"role":"assistant","content":null}]})";
  EXPECT_EQ(render("--chat-template glm-4.7", request).output,
            "\"[gMASK]<sop><|assistant|></think>None\"\n");
  EXPECT_EQ(render("--chat-template glm-4.7 --normalise", request).output,
            "\"[gMASK]<sop><|system|>d<|assistant|></think>\"\n");
}

TEST_F(RenderCommand, NamesTheBadLine) {
  const Ran ran =
      render("--chat-template glm-4.7", std::string(kHi) + "\n{\"messages\":[{}]}\n" + kHi);
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.output, "\"[gMASK]<sop><|user|>Hi<|assistant|><think>\"\n");
  EXPECT_EQ(ran.errors,
            "koho: error: line 2: messages[0].role: expected a string, found nothing\n");
}

TEST_F(RenderCommand, RefusesWrongFlags) {
  EXPECT_EQ(render("", kHi).exit_code, 2);
  EXPECT_EQ(render("--chat-template glm-5", kHi).exit_code, 2);
  EXPECT_EQ(render("--model nowhere", kHi).exit_code, 3);
}

}  // namespace
}  // namespace koho::chat
