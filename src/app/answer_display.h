// SPDX-License-Identifier: Apache-2.0
// A chat's answer on standard output while it is written: on a terminal the thinking in dim
// letters, without its tags; elsewhere the text as it comes. Keeps both parts for the conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/message.h"
#include "chat/output_parser.h"
#include "chat/template.h"

namespace koho::app {

/// `text` as a terminal may have it: control characters but newline and tab, which could move the
/// cursor or colour what follows, as \xHH. `text` holds whole characters.
std::string terminal_text(std::string_view text);

class AnswerDisplay {
 public:
  /// An answer to `conversation` in the template `style`.
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
