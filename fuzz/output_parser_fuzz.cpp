// SPDX-License-Identifier: Apache-2.0
// The output parser on arbitrary answers: every split of an answer gives the same result, events
// are in order, and the arguments of a complete call are a JSON object. Input: a byte of options, a
// byte for the split (0: tokens, 1: bytes, others seed a random split), then text in which the
// bytes F8 to FF stand for the eight tags.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json_writer.h"
#include "chat/json.h"
#include "chat/output_parser.h"

namespace koho::chat {
namespace {

constexpr TagIds kIds{50, 51, 52, 53, 54, 55, 56, 57};

const std::shared_ptr<const ToolSchemas>& tools() {
  static const auto instance = std::make_shared<const ToolSchemas>(
      parse_json(R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},
          "i":{"type":"integer"},"u":{"type":["string","null","array"]},"o":{"type":"object"}}}},
          {"name":"fg"},{"name":"h","parameters":{"additionalProperties":{"type":"string"}}}])")
          ->items);
  return instance;
}

ParsedOutput collect(const std::vector<OutputEvent>& events) {
  ParsedOutput output;
  bool open = false;
  for (const OutputEvent& event : events) {
    const bool prose =
        event.kind == OutputEvent::Kind::reasoning || event.kind == OutputEvent::Kind::content;
    const bool begin = event.kind == OutputEvent::Kind::call_begin;
    KOHO_CHECK_EQ(open, !prose && !begin);
    if (begin) KOHO_CHECK_EQ(event.call_index, output.calls.size());
    open = !prose && event.kind != OutputEvent::Kind::call_end;
    output.add(event);
  }
  return output;
}

/// `next_length` says how long the next piece is.
template <typename NextLength>
ParsedOutput parse_text(const OutputParserOptions& options,
                        AnswerEnd end,
                        std::string_view text,
                        NextLength next_length) {
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  while (!text.empty()) {
    const std::size_t length = std::min<std::size_t>(next_length(), text.size());
    parser.feed_text(text.substr(0, length), events);
    text.remove_prefix(length);
  }
  parser.finish(end, events);
  return collect(events);
}

ParsedOutput parse_tokens(const OutputParserOptions& options,
                          AnswerEnd end,
                          std::string_view text) {
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  while (!text.empty()) {
    std::size_t tag = 0;
    while (tag < kNumTags && !text.starts_with(tag_text(static_cast<Tag>(tag)))) ++tag;
    std::size_t length = 1;
    if (tag < kNumTags) {
      length = tag_text(static_cast<Tag>(tag)).size();
    } else {
      while (length < text.size() && static_cast<unsigned char>(text[length]) >= 0x80) ++length;
    }
    parser.feed_token(tag < kNumTags ? kIds[tag] : 7, text.substr(0, length), events);
    text.remove_prefix(length);
  }
  parser.finish(end, events);
  return collect(events);
}

void check_equal(const ParsedOutput& a, const ParsedOutput& b) {
  KOHO_CHECK_EQ(a.reasoning, b.reasoning);
  KOHO_CHECK_EQ(a.content, b.content);
  KOHO_CHECK_EQ(a.calls.size(), b.calls.size());
  for (std::size_t i = 0; i < a.calls.size(); ++i) {
    KOHO_CHECK_EQ(a.calls[i].name, b.calls[i].name);
    KOHO_CHECK_EQ(a.calls[i].arguments, b.calls[i].arguments);
    KOHO_CHECK_EQ(a.calls[i].complete, b.calls[i].complete);
  }
}

void check_one(const std::uint8_t* data, std::size_t size) {
  OutputParserOptions options;
  options.starts_in_reasoning = (data[0] & 1U) != 0;
  options.newline_after_tags = (data[0] & 2U) != 0;
  if ((data[0] & 4U) == 0) options.tools = tools();
  options.tag_ids = kIds;
  const AnswerEnd end = (data[0] & 8U) != 0 ? AnswerEnd::cut_off : AnswerEnd::finished;
  std::string text;
  for (std::size_t i = 2; i < size; ++i) {
    if (data[i] >= 0xF8) {
      text += tag_text(static_cast<Tag>(data[i] - 0xF8));
    } else {
      text += static_cast<char>(data[i]);
    }
  }

  const ParsedOutput whole = parse_text(options, end, text, [&] { return text.size(); });
  if (data[1] == 0) {
    check_equal(whole, parse_tokens(options, end, text));
  } else if (data[1] == 1) {
    check_equal(whole, parse_text(options, end, text, [] { return std::size_t{1}; }));
  } else {
    std::minstd_rand random(data[1]);
    check_equal(whole, parse_text(options, end, text, [&] { return std::size_t{random() % 9}; }));
  }

  std::string quoted;
  append_json_string(quoted, text);
  if (!parse_json(quoted).ok()) return;  // not UTF-8, so neither are the arguments
  for (const ParsedOutput::Call& call : whole.calls) {
    if (!call.complete) continue;
    const Result<Json> arguments = parse_json(call.arguments);
    KOHO_CHECK(arguments.ok() && arguments->is_object());
  }
}

}  // namespace
}  // namespace koho::chat

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 2) koho::chat::check_one(data, size);
  return 0;
}
