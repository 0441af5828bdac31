// SPDX-License-Identifier: Apache-2.0
#include "app/answer_display.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <fmt/core.h>

namespace koho::app {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";

chat::OutputParserOptions parser_options(const chat::Conversation& conversation,
                                         chat::TemplateStyle style) {
  const bool newest = style == chat::TemplateStyle::glm_4_7;  // its prompt ends in <think>
  chat::OutputParserOptions options;
  options.starts_in_reasoning = newest && conversation.enable_thinking.value_or(true);
  options.newline_after_tags = !newest;
  return options;
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const auto next = static_cast<std::uint8_t>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      shown += fmt::format("\\x{:02x}", next);
      ++i;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

AnswerDisplay::AnswerDisplay(const chat::Conversation& conversation,
                             chat::TemplateStyle style,
                             bool terminal)
    : parser_(parser_options(conversation, style)), terminal_(terminal) {}

void AnswerDisplay::show(std::string_view piece) {
  if (!terminal_) print(piece);
  std::vector<chat::OutputEvent> events;
  parser_.feed_text(piece, events);
  take(events);
  std::fflush(stdout);
}

void AnswerDisplay::finish() {
  std::vector<chat::OutputEvent> events;
  // Reasoning without </think> stays reasoning: cut_off does not report it again as content.
  parser_.finish(chat::AnswerEnd::cut_off, events);
  take(events);
  if (dim_) print(kPlain);
  std::fflush(stdout);
}

void AnswerDisplay::take(const std::vector<chat::OutputEvent>& events) {
  for (const chat::OutputEvent& event : events) {
    const bool is_reasoning = event.kind == chat::OutputEvent::Kind::reasoning;
    (is_reasoning ? reasoning_ : content_) += event.text;
    if (!terminal_ || event.text.empty()) continue;
    if (is_reasoning != dim_) print(is_reasoning ? kDim : "\x1b[0m\n");
    dim_ = is_reasoning;
    print(terminal_text(event.text));
  }
}

chat::Message AnswerDisplay::message() const {
  chat::Message made;
  made.role = "assistant";
  made.content = chat::Json::string(content_);
  if (!reasoning_.empty()) made.reasoning_content = reasoning_;
  return made;
}

}  // namespace koho::app
