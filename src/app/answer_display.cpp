// SPDX-License-Identifier: Apache-2.0
#include "app/answer_display.h"

#include <cstdio>

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
  // Cut off: thoughts that were not ended stay thoughts, and are not given a second time.
  parser_.finish(chat::AnswerEnd::cut_off, events);
  take(events);
  if (dim_) print(kPlain);
  std::fflush(stdout);
}

void AnswerDisplay::take(const std::vector<chat::OutputEvent>& events) {
  for (const chat::OutputEvent& event : events) {
    const bool thought = event.kind == chat::OutputEvent::Kind::reasoning;
    (thought ? reasoning_ : content_) += event.text;
    if (!terminal_ || event.text.empty()) continue;
    if (thought != dim_) print(thought ? kDim : "\x1b[0m\n");
    dim_ = thought;
    print(event.text);
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
