// SPDX-License-Identifier: Apache-2.0
// The parser inside a tool call: the name, the keys and values of the arguments, and the repair of
// tags that the model left out or wrote twice. output_parser.cpp finds the tags.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/check.h"
#include "base/json_writer.h"
#include "chat/json.h"
#include "chat/output_parser.h"
#include "chat/python_text.h"
#include "chat/tool_value.h"

namespace koho::chat {

std::string_view OutputParser::trimmed_name(std::string_view text) {
  text = python_strip(text);
  while (text.starts_with("\\n")) text = python_strip(text.substr(2));
  text = python_strip(text.substr(0, text.find('\n')));
  while (text.ends_with("\\n")) text = python_strip(text.substr(0, text.size() - 2));
  return text;
}

void OutputParser::tag_in_name(Tag tag, std::vector<OutputEvent>& out) {
  switch (tag) {
    case Tag::key_open:
    case Tag::call_close:
      end_name(tag, out);
      return;
    case Tag::key_close:
    case Tag::value_open:
      repair_name(tag, out);
      return;
    case Tag::call_open:
      if (python_strip(buffer_).empty()) {
        ++counts_.mended_calls;
        return;
      }
      // The first call may be incomplete, and running it could do harm: keep it as text.
      ++counts_.malformed_calls;
      enter_prose(State::content);
      prose(tag_text(Tag::call_open), out);
      prose(std::exchange(buffer_, {}), out);
      open_call();
      return;
    case Tag::think_open:
    case Tag::think_close:
    case Tag::value_close:
      return;
  }
}

/// `tag` (<arg_key> or </tool_call>) ends the name.
void OutputParser::end_name(Tag tag, std::vector<OutputEvent>& out) {
  const std::string name(trimmed_name(buffer_));
  if (name.empty()) {
    ++counts_.malformed_calls;
    state_ = State::nameless_call;
    if (tag == Tag::call_close) enter_prose(State::content);
    return;
  }
  if (!begin_call(name, out)) {
    keep_unknown_call(out);
    on_tag(tag, out);
  } else if (tag == Tag::call_close) {
    close_call(out);
  } else {
    state_ = State::key;
  }
}

/// `tag` (</arg_key> or <arg_value>) follows the name: <arg_key> is missing, so buffer_ holds the
/// tool's name and then the key.
void OutputParser::repair_name(Tag tag, std::vector<OutputEvent>& out) {
  const std::string_view text = python_strip(buffer_);
  const std::string name(options_.tools->name_at_start(text));
  const std::string key(python_strip(text.substr(name.size())));
  if (name.empty() || key.empty()) {
    keep_unknown_call(out);
    on_tag(tag, out);
    return;
  }
  const bool known = begin_call(name, out);
  KOHO_CHECK(known);
  ++counts_.mended_calls;
  buffer_ = key;
  end_key();
  if (tag == Tag::value_open) open_value(out);
}

/// Emits the call so far as content.
void OutputParser::keep_unknown_call(std::vector<OutputEvent>& out) {
  ++counts_.unknown_tools;
  enter_prose(State::content);
  prose(tag_text(Tag::call_open), out);
  prose(std::exchange(buffer_, {}), out);
  state_ = State::unknown_call;
}

void OutputParser::tag_in_key(Tag tag, std::vector<OutputEvent>& out) {
  switch (tag) {
    case Tag::key_close:
      end_key();
      return;
    case Tag::value_open:  // </arg_key> is missing
      ++counts_.mended_calls;
      end_key();
      open_value(out);
      return;
    case Tag::call_close:
      close_call(out);
      return;
    case Tag::call_open:
      ++counts_.malformed_calls;
      close_call(out);
      open_call();
      return;
    case Tag::key_open:
    case Tag::value_close:
    case Tag::think_open:
    case Tag::think_close:
      ++counts_.mended_calls;
      return;
  }
}

void OutputParser::tag_after_key(Tag tag, std::vector<OutputEvent>& out) {
  switch (tag) {
    case Tag::value_open:
      open_value(out);
      return;
    case Tag::value_close:  // <arg_value> is missing, and the value is empty
      ++counts_.mended_calls;
      open_value(out);
      tag_in_value(tag, out);
      return;
    case Tag::key_open:  // a key without a value is dropped
      ++counts_.malformed_calls;
      buffer_.clear();
      state_ = State::key;
      return;
    case Tag::call_close:
      ++counts_.malformed_calls;
      close_call(out);
      return;
    case Tag::call_open:
      ++counts_.malformed_calls;
      close_call(out);
      open_call();
      return;
    case Tag::key_close:
    case Tag::think_open:
    case Tag::think_close:
      ++counts_.mended_calls;
      return;
  }
}

void OutputParser::tag_in_value(Tag tag, std::vector<OutputEvent>& out) {
  if (tag == Tag::value_close) {
    pending_.clear();
    state_ = State::after_value;
  } else if (tag == Tag::call_close) {  // </arg_value> is missing
    ++counts_.mended_calls;
    close_value(out);
    close_call(out);
  } else {
    value_text(tag_text(tag), out);
  }
}

void OutputParser::tag_after_value(Tag tag, std::vector<OutputEvent>& out) {
  switch (tag) {
    case Tag::key_open:
      close_value(out);
      state_ = State::key;
      return;
    case Tag::call_close:
      close_value(out);
      close_call(out);
      return;
    case Tag::call_open:  // </tool_call> is missing
      ++counts_.mended_calls;
      close_value(out);
      close_call(out);
      open_call();
      return;
    default: {  // </arg_value> was part of the value
      const std::string blank = std::exchange(pending_, {});
      state_ = State::value;
      value_text(tag_text(Tag::value_close), out);
      value_text(blank, out);
      tag_in_value(tag, out);
    }
  }
}

void OutputParser::open_call() {
  state_ = State::name;
  buffer_.clear();
}

bool OutputParser::begin_call(std::string_view name, std::vector<OutputEvent>& out) {
  if (!options_.tools->has(name)) return false;
  call_name_ = name;
  keys_.clear();
  buffer_.clear();
  has_answer_ = true;
  reasoning_.clear();
  out.push_back({OutputEvent::Kind::call_begin, call_name_, num_calls_,
                 fmt::format("{}{}", options_.call_id_prefix, num_calls_)});
  ++num_calls_;
  return true;
}

/// buffer_ holds the key.
void OutputParser::end_key() {
  if (!options_.tools->names_argument(call_name_, buffer_))
    buffer_ = std::string(python_strip(buffer_));
  pending_.clear();
  state_ = State::after_key;
}

/// buffer_ holds the key.
void OutputParser::open_value(std::vector<OutputEvent>& out) {
  state_ = State::value;
  const std::string key = std::exchange(buffer_, {});
  const bool first = keys_.empty();
  value_is_repeated_ = !keys_.insert(key).second;
  if (value_is_repeated_) {
    ++counts_.malformed_calls;
    return;
  }
  value_types_ = options_.tools->argument_types(call_name_, key);
  value_key_ = key;
  std::string text = first ? "{" : ", ";
  append_json_string(text, key);
  text += ": ";
  if (value_types_ == TypeSet::string) text += '"';
  emit(OutputEvent::Kind::call_arguments, text, out);
}

void OutputParser::value_text(std::string_view text, std::vector<OutputEvent>& out) {
  if (value_is_repeated_) return;
  if (value_types_ != TypeSet::string) {
    buffer_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(escaped, text);
  emit(OutputEvent::Kind::call_arguments, escaped, out);
}

void OutputParser::close_value(std::vector<OutputEvent>& out) {
  pending_.clear();
  if (!value_is_repeated_) {
    const auto allows = [&](const Json& value) {
      return options_.tools->allows(call_name_, value_key_, value);
    };
    emit(OutputEvent::Kind::call_arguments,
         value_types_ == TypeSet::string ? "\"" : value_to_json(buffer_, value_types_, allows),
         out);
  }
  buffer_.clear();
}

void OutputParser::close_call(std::vector<OutputEvent>& out) {
  emit(OutputEvent::Kind::call_arguments, keys_.empty() ? "{}" : "}", out);
  out.push_back({OutputEvent::Kind::call_end, {}, num_calls_ - 1, {}});
  ++num_complete_calls_;
  buffer_.clear();
  enter_prose(State::content);
}

}  // namespace koho::chat
