// SPDX-License-Identifier: Apache-2.0
// Prints a chat's answer while the model writes it: on a terminal the reasoning in dim letters and
// without its tags, elsewhere the text as it is. Keeps reasoning and content for the conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/message.h"
#include "chat/output_parser.h"
#include "chat/template.h"

namespace koho::app {

/// `text` with control characters other than newline and tab as \xHH: they could move the
/// terminal's cursor or change its colours. Requires: `text` has whole UTF-8 characters.
std::string terminal_text(std::string_view text);

class AnswerDisplay {
 public:
  /// `conversation` is what the answer follows, `style` its template.
  AnswerDisplay(const chat::Conversation& conversation, chat::TemplateStyle style, bool terminal);

  /// More of the answer.
  void show(std::string_view piece);

  /// The end of the answer; call once, last.
  void finish();

  /// The answer as a message of the conversation. Only after `finish`.
  chat::Message message() const;

 private:
  void take(const std::vector<chat::OutputEvent>& events);

  chat::OutputParser parser_;
  bool terminal_;
  bool dim_ = false;
  std::string reasoning_;
  std::string content_;
};

}  // namespace koho::app
