// SPDX-License-Identifier: Apache-2.0
// The state machine of the parser: finds tags, and handles reasoning and content. feed_text() and
// feed_token() differ only in how they find tags. output_parser_calls.cpp handles tool calls.
#include "chat/output_parser.h"

#include <algorithm>
#include <utility>

#include "chat/python_text.h"

namespace koho::chat {
namespace {

constexpr std::array<std::string_view, kNumTags> kTagTexts{
    "<think>",   "</think>",   "<tool_call>", "</tool_call>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

/// The tag that `text` starts with; kNumTags if none. `partial`: `text` is the start of a tag.
std::size_t tag_at_start(std::string_view text, bool& partial) {
  partial = false;
  for (std::size_t i = 0; i < kNumTags; ++i) {
    if (text.starts_with(kTagTexts[i])) return i;
    partial = partial || kTagTexts[i].starts_with(text);
  }
  return kNumTags;
}

/// The number of bytes at the end of `text` that start a UTF-8 character without completing it.
std::size_t incomplete_tail(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, text.size()); ++length) {
    const auto byte = static_cast<unsigned char>(text[text.size() - length]);
    if ((byte & 0xC0U) == 0x80U) continue;
    const std::size_t needed = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return needed > length ? length : 0;
  }
  return 0;
}

bool is_blank(std::string_view text) {
  return python_strip(text).empty();
}

/// Whether `text` is blank, counting a backslash and an n as a newline, which models write between
/// tags. A backslash at the end may still become one.
bool is_blank_between_tags(std::string_view text) {
  for (;;) {
    const std::size_t backslash = text.find('\\');
    if (!is_blank(text.substr(0, backslash))) return false;
    if (backslash == std::string_view::npos || backslash + 1 == text.size()) return true;
    if (text[backslash + 1] != 'n') return false;
    text.remove_prefix(backslash + 2);
  }
}

}  // namespace

std::string_view tag_text(Tag tag) {
  return kTagTexts[static_cast<std::size_t>(tag)];
}

OutputParser::OutputParser(OutputParserOptions options)
    : options_(std::move(options)),
      state_(options_.starts_in_reasoning ? State::reasoning : State::content) {}

void OutputParser::feed_token(std::int32_t id,
                              std::string_view piece,
                              std::vector<OutputEvent>& out) {
  release_held(out);
  const auto found = std::find(options_.tag_ids.begin(), options_.tag_ids.end(), id);
  if (id < 0 || found == options_.tag_ids.end()) {
    on_text(piece, out);
    return;
  }
  const auto tag = static_cast<Tag>(found - options_.tag_ids.begin());
  // The detokenizer may return U+FFFD for half a character together with the tag that follows it.
  if (piece.ends_with(tag_text(tag)))
    on_text(piece.substr(0, piece.size() - tag_text(tag).size()), out);
  on_tag(tag, out);
}

void OutputParser::feed_text(std::string_view text, std::vector<OutputEvent>& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::exchange(held_, {});
    joined += text;
    text = joined;
  }
  const std::size_t tail = incomplete_tail(text);
  held_ = text.substr(text.size() - tail);
  text.remove_suffix(tail);
  while (!text.empty()) {
    const std::size_t next = std::min(text.find('<'), text.size());
    if (next > 0) on_text(text.substr(0, next), out);
    text.remove_prefix(next);
    if (text.empty()) return;
    bool partial = false;
    const std::size_t tag = tag_at_start(text, partial);
    if (tag < kNumTags) {
      on_tag(static_cast<Tag>(tag), out);
      text.remove_prefix(kTagTexts[tag].size());
    } else if (partial && tail == 0) {
      held_ = text;
      return;
    } else {
      on_text(text.substr(0, 1), out);
      text.remove_prefix(1);
    }
  }
}

void OutputParser::finish(AnswerEnd end, std::vector<OutputEvent>& out) {
  release_held(out);
  if (is_exact() && num_calls_ == 0)
    emit(OutputEvent::Kind::content, std::exchange(blank_, {}), out);
  if (end == AnswerEnd::cut_off) return;
  switch (state_) {
    case State::name:
      if (options_.tools->has(trimmed_name(buffer_))) {
        on_tag(Tag::call_close, out);
      } else if (!is_blank(buffer_)) {
        keep_unknown_call(out);
      }
      break;
    case State::key:
    case State::after_key:
    case State::value:
    case State::after_value:
      on_tag(Tag::call_close, out);
      break;
    case State::reasoning:
      ++counts_.unclosed_reasoning;
      if (!has_answer_) emit(OutputEvent::Kind::content, std::exchange(reasoning_, {}), out);
      break;
    case State::content:
    case State::unknown_call:
    case State::nameless_call:
      break;
  }
}

void OutputParser::release_held(std::vector<OutputEvent>& out) {
  if (!held_.empty()) on_text(std::exchange(held_, {}), out);
}

void OutputParser::on_text(std::string_view text, std::vector<OutputEvent>& out) {
  if (text.empty()) return;
  switch (state_) {
    case State::reasoning:
    case State::content:
    case State::unknown_call:
      prose(text, out);
      return;
    case State::name:
    case State::key:
      buffer_ += text;
      return;
    case State::value:
      value_text(text, out);
      return;
    case State::after_key:
    case State::after_value: {
      // pending_ is blank so far. Of it only a final backslash can change whether `text` is blank.
      const bool backslash = pending_.ends_with('\\');
      pending_ += text;
      if (is_blank_between_tags(std::string_view(pending_).substr(pending_.size() - text.size() -
                                                                  (backslash ? 1 : 0))))
        return;
      const std::string value = std::exchange(pending_, {});
      if (state_ == State::after_key) {  // <arg_value> is missing
        ++counts_.mended_calls;
        open_value(out);
      } else {  // </arg_value> was part of the value
        state_ = State::value;
        value_text(tag_text(Tag::value_close), out);
      }
      value_text(value, out);
      return;
    }
    case State::nameless_call:
      return;
  }
}

void OutputParser::on_tag(Tag tag, std::vector<OutputEvent>& out) {
  switch (state_) {
    case State::reasoning:
    case State::content:
      tag_in_prose(tag, out);
      return;
    case State::name:
      tag_in_name(tag, out);
      return;
    case State::key:
      tag_in_key(tag, out);
      return;
    case State::after_key:
      tag_after_key(tag, out);
      return;
    case State::value:
      tag_in_value(tag, out);
      return;
    case State::after_value:
      tag_after_value(tag, out);
      return;
    case State::unknown_call:
      prose(tag_text(tag), out);
      if (tag == Tag::call_close) enter_prose(State::content);
      return;
    case State::nameless_call:
      if (tag == Tag::call_close) enter_prose(State::content);
      return;
  }
}

void OutputParser::tag_in_prose(Tag tag, std::vector<OutputEvent>& out) {
  const bool tools = options_.tools != nullptr;
  const bool of_reasoning = tag == Tag::think_open || tag == Tag::think_close;
  if (of_reasoning && is_exact()) {
    prose(tag_text(tag), out);
  } else if (tag == Tag::think_open) {
    if (state_ == State::content) enter_prose(State::reasoning);
  } else if (tag == Tag::think_close) {
    if (state_ == State::reasoning) enter_prose(State::content);
  } else if (tag == Tag::call_open && tools) {
    open_call();
  } else if (tag == Tag::call_close && tools && state_ == State::content) {
    return;
  } else {
    prose(tag_text(tag), out);
  }
}

void OutputParser::enter_prose(State state) {
  state_ = state;
  blank_.clear();
  run_has_text_ = false;
}

/// Emits reasoning or content. Blank text after a tag waits until other text follows.
void OutputParser::prose(std::string_view text, std::vector<OutputEvent>& out) {
  const OutputEvent::Kind kind =
      state_ == State::reasoning ? OutputEvent::Kind::reasoning : OutputEvent::Kind::content;
  if (run_has_text_) {
    emit(kind, text, out);
    return;
  }
  blank_ += text;
  if (is_blank(text)) return;
  run_has_text_ = true;
  const std::string run = std::exchange(blank_, {});
  const bool strips = options_.newline_after_tags && !is_exact();
  emit(kind, strips ? strip_newlines_left(run) : std::string_view(run), out);
}

void OutputParser::emit(OutputEvent::Kind kind,
                        std::string_view text,
                        std::vector<OutputEvent>& out) {
  if (text.empty()) return;
  if (kind == OutputEvent::Kind::content) {
    has_answer_ = true;
    reasoning_.clear();
  } else if (kind == OutputEvent::Kind::reasoning && !has_answer_) {
    reasoning_ += text;
  }
  const std::size_t call = kind == OutputEvent::Kind::call_arguments ? num_calls_ - 1 : 0;
  if (!out.empty() && out.back().kind == kind && out.back().call_index == call) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text), call, {}});
  }
}

void ParsedOutput::add(const OutputEvent& event) {
  switch (event.kind) {
    case OutputEvent::Kind::reasoning:
      reasoning += event.text;
      return;
    case OutputEvent::Kind::content:
      content += event.text;
      return;
    case OutputEvent::Kind::call_begin:
      calls.push_back({event.call_id, event.text, {}, false});
      return;
    case OutputEvent::Kind::call_arguments:
      calls.at(event.call_index).arguments += event.text;
      return;
    case OutputEvent::Kind::call_end:
      calls.at(event.call_index).complete = true;
      return;
  }
}

}  // namespace koho::chat
