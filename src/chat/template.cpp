// SPDX-License-Identifier: Apache-2.0
// One renderer for the three templates. 4.6 and 4.5 differ from 4.7: they write a newline after
// each tag, an empty <think></think> where 4.7 writes only </think>, and "/nothink" after the
// user's text when thinking is off; they have no clear_thinking.
#include "chat/template.h"

#include <array>
#include <cstddef>
#include <utility>

#include <fmt/core.h>

#include "chat/python_text.h"

namespace koho::chat {
namespace {

constexpr std::array<std::string_view, 3> kTemplateStyleNames{"glm-4.7", "glm-4.6", "glm-4.5"};

/// The added tokens that the templates write; the last is not in GLM-4.7's.
constexpr std::array<std::string_view, 17> kControlTokens{
    "[gMASK]",          "<sop>",     "<|system|>", "<|user|>",    "<|assistant|>",
    "<|observation|>",  "<think>",   "</think>",   "<tool_call>", "</tool_call>",
    "<tool_response>",  "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "</tool_response>", "/nothink"};

/// Collects segments. The template's own text goes through literal(), a client's text through
/// client().
class PromptWriter {
 public:
  void literal(std::string_view text) {
    while (!text.empty()) {
      const std::string_view token = control_token_at_start(text);
      if (token.empty()) {
        client(text.substr(0, 1));
      } else {
        prompt_.segments.push_back({Segment::Kind::control, std::string(token)});
      }
      text.remove_prefix(std::max<std::size_t>(token.size(), 1));
    }
  }
  void client(std::string_view text) {
    if (text.empty()) return;
    if (prompt_.segments.empty() || prompt_.segments.back().kind == Segment::Kind::control)
      prompt_.segments.push_back({Segment::Kind::text, {}});
    prompt_.segments.back().text += text;
  }
  Prompt take() && { return std::move(prompt_); }

 private:
  static std::string_view control_token_at_start(std::string_view text) {
    for (const std::string_view token : kControlTokens)
      if (text.starts_with(token)) return token;
    return {};
  }

  Prompt prompt_;
};

/// An assistant message, split into reasoning and content.
struct Answer {
  std::string reasoning;
  std::string content;
};

Answer split_answer(const Message& message) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  std::string content = visible_text(message.content);
  if (message.reasoning_content) return {*message.reasoning_content, std::move(content)};
  const std::size_t first_close = content.find(kClose);
  if (first_close == std::string::npos) return {"", std::move(content)};
  const std::string_view all = content;
  std::string_view reasoning = strip_newlines_right(all.substr(0, first_close));
  if (const std::size_t last_open = reasoning.rfind(kOpen); last_open != std::string_view::npos)
    reasoning.remove_prefix(last_open + kOpen.size());
  const std::string_view rest = all.substr(all.rfind(kClose) + kClose.size());
  return {std::string(strip_newlines_left(reasoning)), std::string(strip_newlines_left(rest))};
}

class Renderer {
 public:
  Renderer(const Conversation& conversation, TemplateStyle style)
      : conversation_(conversation),
        is_4_7_(style == TemplateStyle::glm_4_7),
        newline_(is_4_7_ ? "" : "\n") {}

  Result<Prompt> render() && {
    write_.literal("[gMASK]<sop>");
    if (!conversation_.tools.empty()) tools();
    const std::vector<Message>& messages = conversation_.messages;
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (messages[i].role == "user") num_until_last_user_ = i + 1;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Message& message = messages[i];
      if (message.role == "user") {
        user(message);
      } else if (message.role == "assistant") {
        assistant(message, i >= num_until_last_user_);
      } else if (message.role == "tool") {
        KOHO_TRY(tool(message, i == 0 || messages[i - 1].role != "tool", i));
      } else if (message.role == "system") {
        role_tag("<|system|>");
        write_.client(visible_text(message.content));
      }  // The templates have no case for other roles and print nothing.
    }
    if (conversation_.add_generation_prompt) generation_prompt();
    return std::move(write_).take();
  }

 private:
  bool thinking_is_off() const { return conversation_.enable_thinking == false; }

  void role_tag(std::string_view tag) {
    write_.literal(tag);
    write_.literal(newline_);
  }

  void tools() {
    write_.literal(
        "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user "
        "query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
    for (const Json& tool : conversation_.tools) {
      write_.client(dump_json(tool));
      write_.literal("\n");
    }
    write_.literal(
        "</tools>\n\nFor each function call, output the function name and arguments within the "
        "following XML format:\n");
    for (const std::string_view line :
         {"<tool_call>{function-name}", "<arg_key>{arg-key-1}</arg_key>",
          "<arg_value>{arg-value-1}</arg_value>", "<arg_key>{arg-key-2}</arg_key>",
          "<arg_value>{arg-value-2}</arg_value>", "..."}) {
      write_.literal(line);
      write_.literal(newline_);
    }
    write_.literal("</tool_call>");
  }

  void user(const Message& message) {
    const std::string text = visible_text(message.content);
    role_tag("<|user|>");
    write_.client(text);
    if (!is_4_7_ && thinking_is_off() && !text.ends_with("/nothink")) write_.literal("/nothink");
  }

  void assistant(const Message& message, bool after_last_user) {
    const Answer answer = split_answer(message);
    const bool keeps_reasoning =
        after_last_user || (is_4_7_ && conversation_.clear_thinking == false);
    write_.literal("<|assistant|>");
    if (keeps_reasoning && !answer.reasoning.empty()) {
      write_.literal(newline_);
      write_.literal("<think>");
      write_.client(python_strip(answer.reasoning));
      write_.literal("</think>");
    } else {
      write_.literal(is_4_7_ ? "</think>" : "\n<think></think>");
    }
    if (const std::string_view content = python_strip(answer.content); !content.empty()) {
      write_.literal(newline_);
      write_.client(content);
    }
    for (const ToolCall& call : message.tool_calls) tool_call(call);
  }

  void tool_call(const ToolCall& call) {
    write_.literal(newline_);
    write_.literal("<tool_call>");
    write_.client(call.name);
    write_.literal(newline_);
    for (std::size_t i = 0; i < call.arguments.items.size(); ++i) {
      const Json& value = call.arguments.items[i];
      write_.literal("<arg_key>");
      write_.client(call.arguments.keys[i]);
      write_.literal("</arg_key>");
      write_.literal(newline_);
      write_.literal("<arg_value>");
      if (value.is_string()) {
        write_.client(value.text);
      } else {
        write_.client(dump_json(value));
      }
      write_.literal("</arg_value>");
      write_.literal(newline_);
    }
    write_.literal("</tool_call>");
  }

  void tool_response(std::string_view text) {
    write_.literal(newline_);
    write_.literal("<tool_response>");
    write_.literal(newline_);
    write_.client(text);
    write_.literal(newline_);
    write_.literal("</tool_response>");
  }

  Status tool(const Message& message, bool first_of_run, std::size_t index) {
    if (message.content && message.content->is_string()) {
      if (first_of_run) write_.literal("<|observation|>");
      tool_response(message.content->text);
      return {};
    }
    if (message.content && !message.content->is_array())
      return make_field_error(
          ErrorCode::invalid_argument, fmt::format("messages[{}].content", index),
          "{}: expected a string or an array, found {}", kind_name(message.content->kind));
    write_.literal("<|observation|>");
    if (!message.content) return {};
    for (const Json& part : message.content->items) {
      const Json* output = part.find("output");
      tool_response(python_str(output != nullptr ? *output : part));
    }
    return {};
  }

  void generation_prompt() {
    write_.literal("<|assistant|>");
    if (is_4_7_) {
      write_.literal(thinking_is_off() ? "</think>" : "<think>");
    } else if (thinking_is_off()) {
      write_.literal("\n<think></think>");
    }
  }

  const Conversation& conversation_;
  bool is_4_7_;
  std::string_view newline_;             // "\n" after every tag of 4.6 and 4.5
  std::size_t num_until_last_user_ = 0;  // messages up to and including the last user message
  PromptWriter write_;
};

}  // namespace

std::string_view template_style_name(TemplateStyle style) {
  return kTemplateStyleNames[static_cast<std::size_t>(style)];
}

std::span<const std::string_view> control_tokens(TemplateStyle style) {
  const std::span<const std::string_view> all = kControlTokens;
  return style == TemplateStyle::glm_4_7 ? all.first(all.size() - 1) : all;
}

std::string Prompt::text() const {
  std::string all;
  for (const Segment& segment : segments) all += segment.text;
  return all;
}

bool Prompt::ends_in_thinking() const {
  return !segments.empty() && segments.back() == Segment{Segment::Kind::control, "<think>"};
}

Result<Prompt> render(const Conversation& conversation, TemplateStyle style) {
  return Renderer(conversation, style).render();
}

}  // namespace koho::chat
