// SPDX-License-Identifier: Apache-2.0
// A conversation on the terminal: turns, and the commands that begin with '/'.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "app/answering.h"
#include "app/line_editor.h"
#include "base/error.h"
#include "chat/message.h"
#include "runtime/runtime.h"

namespace koho::app {

class ChatSession {
 public:
  /// All outlive the session. Requires: runtime.text().
  ChatSession(Runtime& runtime,
              AnsweringFlags& flags,
              std::optional<Constraint> constraint,
              chat::Conversation conversation,
              LineEditor& editor);

  /// Reads and answers until the user leaves. Returns the exit code. Errors: io_error.
  Result<int> run();

 private:
  /// What the user said, with its further lines; nothing: the user leaves.
  Result<std::optional<std::string>> read_message();
  /// Runs "/name rest"; false: the user leaves.
  Result<bool> command(const std::string& line);
  Status set(std::string_view text);
  Status save(const std::string& path) const;
  Status load(const std::string& path);
  void say(const std::string& text);
  Status reply();
  void drop_last_answer();

  Runtime& runtime_;
  AnsweringFlags& flags_;
  std::optional<Constraint> constraint_;
  chat::Conversation conversation_;
  LineEditor& editor_;
  bool just_interrupted_ = false;
  int exit_code_ = 0;
};

/// The messages as a JSON object {"messages": [...]}, as OpenAI's API takes them.
std::string conversation_json(const chat::Conversation& conversation);

/// Chats on the terminal until the user leaves. Returns the exit code. Errors: those of the model.
Result<int> chat_on_terminal(AnsweringFlags& flags);

}  // namespace koho::app
