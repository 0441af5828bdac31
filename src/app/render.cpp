// SPDX-License-Identifier: Apache-2.0
// `koho render`: chat requests in, prompt text out, one a line. Renders what it is given, as the
// checkpoint's own template would; --normalise first applies what the server does to messages.
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "app/command.h"
#include "app/model_directory.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "chat/json.h"
#include "chat/message.h"
#include "chat/template.h"
#include "chat/template_choice.h"

namespace koho::app {
namespace {

constexpr std::size_t kLineBytesMax = 64U << 20U;

constexpr const char* kExamples =
    R"(Input, one JSON object a line: "messages", "tools", "add_generation_prompt",
"enable_thinking", "clear_thinking". Output, one JSON string a line: the prompt text.
The first bad line, also an empty one, ends the program with an error that names its number.

The text is what the checkpoint's template gives for the same input, byte for byte: content null
prints None, for instance. Where the template would fail (tool-call arguments as a string of JSON, or
missing), the arguments are read as an object. With --normalise the messages are first changed as the
server changes them: null content is empty, role developer is system, a tool's text parts are joined,
"reasoning" counts as "reasoning_content".

Examples:
  echo '{"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true}' |
    koho render --model models/tiny
  koho render --chat-template glm-4.6 < requests.jsonl > prompts.jsonl)";

struct RenderOptions {
  std::string model;
  std::string chat_template = "auto";
  bool normalise = false;
};

Result<std::string> render_line(const std::string& line,
                                chat::TemplateStyle style,
                                bool normalise) {
  KOHO_TRY_ASSIGN(const chat::Json request, chat::parse_json(line));
  KOHO_TRY_ASSIGN(chat::Conversation conversation, chat::read_conversation(request));
  if (normalise) KOHO_TRY(chat::normalize(conversation));
  KOHO_TRY_ASSIGN(const chat::Prompt prompt, chat::render(conversation, style));
  std::string quoted;
  append_json_string(quoted, prompt.text());
  return quoted;
}

Status run_render(const RenderOptions& options) {
  KOHO_TRY_ASSIGN(const std::optional<chat::TemplateStyle> asked,
                  chat::parse_template_style(options.chat_template));
  std::optional<std::string> template_text;
  if (!options.model.empty()) {
    KOHO_TRY_ASSIGN(const std::filesystem::path directory, find_model(options.model, false));
    KOHO_TRY_ASSIGN(template_text, chat::read_template_text(directory));
  } else if (!asked) {
    return make_error(ErrorCode::invalid_argument,
                      "no chat template: give --model DIR or --chat-template glm-4.7");
  }
  const chat::TemplateChoice choice = chat::choose_template(template_text, asked);
  if (!choice.warning.empty()) log::warning("{}", choice.warning);

  std::string line;
  for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.size() > kLineBytesMax)
      return make_error(ErrorCode::resource_exhausted, "line {}: has {} bytes, the limit is {}",
                        number, line.size(), kLineBytesMax);
    Result<std::string> prompt = render_line(line, choice.style, options.normalise);
    if (!prompt.ok()) return std::move(prompt).error().with_context(fmt::format("line {}", number));
    std::cout << *prompt << '\n';
  }
  if (std::cin.bad()) return make_error(ErrorCode::io_error, "standard input could not be read");
  return {};
}

}  // namespace

Runner add_render(CommandLine& command) {
  const auto options = std::make_shared<RenderOptions>();
  command.add_option("-m,--model,MODEL", options->model, "Model directory, for its chat template")
      ->type_name("DIR");
  command
      .add_option(
          "--chat-template", options->chat_template,
          "auto (the template of the checkpoint), glm-4.7, glm-4.6 or glm-4.5 (not compared "
          "with the official file)")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_flag("--normalise", options->normalise,
                   "Change the messages as the server does before rendering");
  command.footer(kExamples);
  return [options] { return run_render(*options); };
}

}  // namespace koho::app
