// SPDX-License-Identifier: Apache-2.0
// Prints a chat's answer while the model writes it: on a terminal the reasoning dimmed, Markdown
// and code coloured, tool calls as lines of their own; elsewhere the answer's text. Keeps
// reasoning, content and calls for the conversation.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/markdown_colors.h"
#include "chat/message.h"
#include "chat/output_parser.h"
#include "engine/output_stream.h"

namespace koho::app {

class AnswerDisplay {
 public:
  struct Options {
    bool terminal = false;     // control characters are shown, not obeyed
    bool color = false;        // reasoning dim, Markdown coloured
    bool reasoning = false;    // print it: dim, or between <think> and </think>
    bool silent = false;       // print nothing
    bool by_spelling = false;  // tags are known by their text: the engine holds text back for stop
                               // strings, so that it comes later than its token
  };

  AnswerDisplay(chat::OutputParserOptions parser, const Options& options);

  /// More of the answer.
  void show(const OutputEvent& event);

  /// The end of the answer; call once, last.
  void finish();

  const chat::ParsedOutput& parsed() const { return parsed_; }
  /// The answer as a message of the conversation. Only after `finish`.
  chat::Message message() const;

 private:
  void take();
  void print_reasoning(std::string_view text);
  void end_reasoning();
  void print(std::string_view text);

  chat::OutputParser parser_;
  chat::TagIds tag_ids_;
  Options options_;
  std::optional<MarkdownColors> colors_;
  std::vector<chat::OutputEvent> events_;  // scratch
  chat::ParsedOutput parsed_;
  bool in_reasoning_ = false;
  bool reasoned_ = false;
  bool line_begins_ = true;
};

/// The defaults of an answer to standard output; `show_reasoning` as --show-reasoning says.
AnswerDisplay::Options display_options(std::optional<bool> show_reasoning);

/// The calls as a JSON array: id, name, arguments as the JSON object they are, or as a string if
/// they were cut off.
std::string calls_json(const std::vector<chat::ParsedOutput::Call>& calls);

}  // namespace koho::app
