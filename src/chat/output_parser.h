// SPDX-License-Identifier: Apache-2.0
// Splits the model's output into reasoning, content and tool calls while it is generated. The same
// parser serves streams and whole answers: the result does not depend on how the input is cut into
// pieces. It knows GLM's tags and the request's tools, holds the state of one answer, and has no
// errors: text that is not a valid tool call stays text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "chat/tool_schema.h"

namespace koho::chat {

/// The tags of an answer. Each is one added token of the tokenizer.
enum class Tag : std::uint8_t {
  think_open,
  think_close,
  call_open,
  call_close,
  key_open,
  key_close,
  value_open,
  value_close
};
inline constexpr std::size_t kNumTags = 8;

/// "<think>", "</think>", "<tool_call>", ...
std::string_view tag_text(Tag tag);

/// The token id of each tag, in the order of Tag; -1 if the tokenizer lacks the tag.
using TagIds = std::array<std::int32_t, kNumTags>;
inline constexpr TagIds kNoTagIds{-1, -1, -1, -1, -1, -1, -1, -1};

/// A piece of the answer. The events of a call follow each other: begin, arguments..., end. A call
/// that was cut off has no end.
struct OutputEvent {
  enum class Kind : std::uint8_t { reasoning, content, call_begin, call_arguments, call_end };
  Kind kind = Kind::content;
  std::string text;            // reasoning, content: more text; call_begin: the tool's name;
                               // call_arguments: more of one JSON object
  std::size_t call_index = 0;  // events of calls: 0 for the first call
  std::string call_id;         // call_begin
};

/// How an answer ended: finished (the model sampled an end token) or cut off (length, stop string,
/// cancelled).
enum class AnswerEnd : std::uint8_t { finished, cut_off };

struct OutputParserOptions {
  bool starts_in_reasoning = false;  // the prompt ends with <think>
  bool newline_after_tags = false;   // GLM-4.6 and 4.5 write a newline around their tags
  bool exact_content = false;        // a grammar says what the content is
  std::shared_ptr<const ToolSchemas>
      tools;  // nullptr: tool tags are text (no tools, or tool_choice none)
  TagIds tag_ids = kNoTagIds;
  std::string call_id_prefix = "call_";  // call n has the id "<prefix>n"
};

/// The rules (docs/chat.md gives the reasons):
///  - Reasoning ends at </think> or <tool_call>. <think> opens reasoning, because GLM-4.6 writes it
///    in the answer. The parser drops <think> in reasoning, and </think> and </tool_call> in
///    content.
///  - It drops blank text between tags and keeps other text as it is. For 4.6 and 4.5 it also drops
///    leading newlines, which belong to the format. Exact content is kept as it is, <think> and
///    </think> included; blank text beside calls is not content.
///  - It sends a tool's name once, complete. A call of an unknown tool stays text; a call without a
///    name is dropped.
///  - Arguments are JSON, typed by the tool's schema (value_to_json). It sends a string while it
///    grows and any other value when it is complete. Of a repeated key the first value counts.
///  - </arg_value> ends a value only if <arg_key>, </tool_call>, <tool_call> or the end of the
///    answer follows; elsewhere it is part of the value. </tool_call> always ends the value and the
///    call.
///  - It repairs a missing <arg_key> or <arg_value> and doubled key tags.
///  - If an answer finishes in reasoning, without content and calls, the reasoning is sent as
///    content too: a client must not get an empty answer.
class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  /// Parses the next token and its text. Recognizes tags by id; a tag spelled in ordinary tokens is
  /// text. Requires: `piece` holds whole UTF-8 characters.
  void feed_token(std::int32_t id, std::string_view piece, std::vector<OutputEvent>& out);

  /// Parses more text, cut anywhere. Recognizes tags by their spelling; text that may be the start
  /// of a tag waits for the next piece.
  void feed_text(std::string_view text, std::vector<OutputEvent>& out);

  /// Ends the answer and emits everything held back. Call once, last.
  void finish(AnswerEnd end, std::vector<OutputEvent>& out);

  /// Calls that ended with </tool_call>, or with the end of a finished answer.
  std::size_t num_complete_calls() const { return num_complete_calls_; }

  /// Deviations from the format, for metrics.
  struct Counts {
    std::size_t unknown_tools = 0;  // calls of tools that the request lacks
    std::size_t malformed_calls =
        0;                         // without a name, cut by another call, or a key lost or repeated
    std::size_t mended_calls = 0;  // repairs of a missing or doubled tag
    std::size_t unclosed_reasoning = 0;  // 1: the answer finished within reasoning
  };
  const Counts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t {
    reasoning,
    content,
    name,          // after <tool_call>
    key,           // after <arg_key>
    after_key,     // after </arg_key>
    value,         // after <arg_value>
    after_value,   // after </arg_value>; the next tag tells whether it ended the value
    unknown_call,  // of a tool that the request lacks: text up to </tool_call>
    nameless_call  // dropped up to </tool_call>
  };

  void on_text(std::string_view text, std::vector<OutputEvent>& out);
  void on_tag(Tag tag, std::vector<OutputEvent>& out);
  void tag_in_prose(Tag tag, std::vector<OutputEvent>& out);
  void tag_in_name(Tag tag, std::vector<OutputEvent>& out);
  void tag_in_key(Tag tag, std::vector<OutputEvent>& out);
  void tag_after_key(Tag tag, std::vector<OutputEvent>& out);
  void tag_in_value(Tag tag, std::vector<OutputEvent>& out);
  void tag_after_value(Tag tag, std::vector<OutputEvent>& out);

  /// A tool's name as the model wrote it, up to the first newline, without blanks and "\n" (a
  /// backslash and an n) at both ends.
  static std::string_view trimmed_name(std::string_view text);
  void enter_prose(State state);
  void open_call();
  bool begin_call(std::string_view name, std::vector<OutputEvent>& out);
  void end_name(Tag tag, std::vector<OutputEvent>& out);
  void repair_name(Tag tag, std::vector<OutputEvent>& out);
  void keep_unknown_call(std::vector<OutputEvent>& out);
  void end_key();
  void open_value(std::vector<OutputEvent>& out);
  void value_text(std::string_view text, std::vector<OutputEvent>& out);
  void close_value(std::vector<OutputEvent>& out);
  void close_call(std::vector<OutputEvent>& out);

  void prose(std::string_view text, std::vector<OutputEvent>& out);
  bool is_exact() const { return options_.exact_content && state_ == State::content; }
  void release_held(std::vector<OutputEvent>& out);
  void emit(OutputEvent::Kind kind, std::string_view text, std::vector<OutputEvent>& out);

  OutputParserOptions options_;
  State state_;
  std::string held_;  // feed_text(): the possible start of a tag or of a character

  std::string blank_;          // blank text since the last tag, not yet emitted
  bool run_has_text_ = false;  // text since the last tag was emitted
  std::string reasoning_;      // all reasoning, until there is content or a call
  bool has_answer_ = false;    // content or a call was emitted

  std::string buffer_;   // the name, the key, or a value that is not yet complete
  std::string pending_;  // blank text after </arg_key> or </arg_value>
  std::string call_name_;
  std::unordered_set<std::string> keys_;  // of the current call
  TypeSet value_types_ = TypeSet::kAny;
  std::string value_key_;
  bool value_is_repeated_ = false;  // the call already has this key: drop the value
  std::size_t num_calls_ = 0;
  std::size_t num_complete_calls_ = 0;
  Counts counts_;
};

/// A whole answer, assembled from events.
struct ParsedOutput {
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;  // JSON text; incomplete if !complete
    bool complete = false;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;

  void add(const OutputEvent& event);
};

}  // namespace koho::chat
