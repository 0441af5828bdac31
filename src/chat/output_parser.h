// SPDX-License-Identifier: Apache-2.0
// What the model writes, split into reasoning, content and tool calls while it is generated. One
// parser serves streams and whole answers: how its input is cut into pieces never changes the
// result. It knows GLM's tags and the request's tools, holds the state of one answer, and refuses
// nothing: text that is no valid tool call stays text.
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

/// The tags that structure an answer, each one added token of the tokenizer.
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

/// The token id of each tag, in the order of Tag; -1 where the tokenizer has no such token.
using TagIds = std::array<std::int32_t, kNumTags>;
inline constexpr TagIds kNoTagIds{-1, -1, -1, -1, -1, -1, -1, -1};

/// A piece of the answer. A call's events come together, in the order begin, arguments..., end; a
/// call that was cut off has no end.
struct OutputEvent {
  enum class Kind : std::uint8_t { reasoning, content, call_begin, call_arguments, call_end };
  Kind kind = Kind::content;
  std::string text;            // of reasoning, content: more text; of call_begin: the tool's name;
                               // of call_arguments: more of one JSON object
  std::size_t call_index = 0;  // of call events
  std::string call_id;         // of call_begin
};

/// How an answer ended: by itself (one of the model's end tokens), or cut off (length, a client's
/// stop string, cancelled).
enum class AnswerEnd : std::uint8_t { finished, cut_off };

struct OutputParserOptions {
  bool starts_in_reasoning = false;  // the prompt ends in <think>
  bool newline_after_tags = false;   // GLM-4.6 and 4.5 write a newline around their tags
  std::shared_ptr<const ToolSchemas>
      tools;  // nullptr: tool tags are text (no tools, or tool_choice none)
  TagIds tag_ids = kNoTagIds;
  std::string call_id_prefix = "call_";  // the n-th call's id is this and n
};

/// The rules, where docs/chat.md gives the reasons:
///  - reasoning ends at </think>, or at <tool_call>; <think> in an answer opens reasoning (GLM-4.6
///    writes it itself); further <think> in reasoning, </think> in content and </tool_call> in
///    content are swallowed;
///  - blank text between tags is dropped, any other text is kept as it is (of 4.6 and 4.5, leading
///    newlines are the format's and dropped);
///  - a name is sent once, complete; a call of no known tool stays text; one without a name is
///    dropped;
///  - argument text is JSON, typed by the tool's schema (value_to_json); string values are sent as
///    they grow, others when complete; of a repeated key the first value counts;
///  - </arg_value> ends a value only where <arg_key>, </tool_call>, <tool_call> or the end follows;
///    elsewhere it is part of the value. </tool_call> always ends value and call;
///  - <arg_value> or <arg_key> left out by the model, and doubled key tags, are mended;
///  - an answer that finished within reasoning, with no content and no call, is given as content as
///    well: clients must not get an empty answer.
class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  /// The next token and its text. Tags are known by id: a tag spelled in ordinary tokens is text.
  /// Requires: whole UTF-8 characters.
  void feed_token(std::int32_t id, std::string_view piece, std::vector<OutputEvent>& out);

  /// More text, cut anywhere. Tags are known by their spelling; a possible beginning of one waits
  /// for the next piece.
  void feed_text(std::string_view text, std::vector<OutputEvent>& out);

  /// The end: everything held back comes out. Call once, last.
  void finish(AnswerEnd end, std::vector<OutputEvent>& out);

  std::size_t num_calls() const { return num_calls_; }
  /// Calls that ended with </tool_call> or by the answer's end.
  std::size_t num_complete_calls() const { return num_complete_calls_; }

  /// For metrics: what was not as it should be.
  struct Counts {
    std::size_t unknown_tools = 0;       // calls of tools that the request does not have
    std::size_t malformed_calls = 0;     // no name, or cut by another call
    std::size_t mended_calls = 0;        // a tag was missing or doubled
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
    after_value,   // after </arg_value>: whether it ended the value shows what follows
    unknown_call,  // of a tool that the request does not have: text up to </tool_call>
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

  /// A tool's name as written: blanks and backslash-n off both ends, up to the first newline.
  static std::string_view trimmed_name(std::string_view text);
  void enter_prose(State state);
  void open_call();
  bool begin_call(std::string_view name, std::vector<OutputEvent>& out);
  void end_name(Tag tag, std::vector<OutputEvent>& out);
  void mend_name(Tag tag, std::vector<OutputEvent>& out);
  void keep_unknown_call(std::vector<OutputEvent>& out);
  void end_key();
  void open_value(std::vector<OutputEvent>& out);
  void value_text(std::string_view text, std::vector<OutputEvent>& out);
  void close_value(std::vector<OutputEvent>& out);
  void close_call(std::vector<OutputEvent>& out);

  void prose(std::string_view text, std::vector<OutputEvent>& out);
  void release_held(std::vector<OutputEvent>& out);
  void emit(OutputEvent::Kind kind, std::string_view text, std::vector<OutputEvent>& out);

  OutputParserOptions options_;
  State state_;
  std::string held_;  // text mode: what may be the beginning of a tag, or half a character

  std::string blank_;          // blank text at the start of a run of prose
  bool run_has_text_ = false;  // the run of prose has been emitted from
  std::string reasoning_;      // all reasoning, until there is content or a call
  bool has_answer_ = false;    // content or a call was emitted

  std::string buffer_;   // the name; the key; a value that waits for its end
  std::string pending_;  // blank text after </arg_key> or </arg_value>
  std::string call_name_;
  std::unordered_set<std::string> keys_;  // of the call
  TypeSet value_types_ = TypeSet::kAny;
  bool value_is_repeated_ = false;  // of a key that the call already has
  std::size_t num_calls_ = 0;
  std::size_t num_complete_calls_ = 0;
  Counts counts_;
};

/// A whole answer, put together from events.
struct ParsedOutput {
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;  // JSON text; cut off when !complete
    bool complete = false;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;

  void add(const OutputEvent& event);
};

}  // namespace koho::chat
