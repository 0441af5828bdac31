// SPDX-License-Identifier: Apache-2.0
// The corpus of model outputs (tools/make_parser_cases.py). Each case gives the recorded result
// when fed whole, token by token, byte by byte, cut in two at every place, and in random pieces.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "chat/json.h"
#include "chat/output_parser.h"

namespace koho::chat {
namespace {

struct Case {
  std::string name;
  std::string text;
  AnswerEnd end = AnswerEnd::finished;
  OutputParserOptions options;
  ParsedOutput expected;
};

constexpr TagIds kIds{50, 51, 52, 53, 54, 55, 56, 57};
constexpr std::int32_t kOrdinaryToken = 7;

std::vector<Case> read_cases() {
  const Result<std::string> text = read_file(
      std::filesystem::path(KOHO_SOURCE_DIR) / "tests/chat/data/parser_cases.jsonl", 16U << 20U);
  EXPECT_TRUE(text.ok());
  std::vector<Case> cases;
  std::shared_ptr<const ToolSchemas> tools;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t length = rest.find('\n');
    const Result<Json> line = parse_json(rest.substr(0, length));
    EXPECT_TRUE(line.ok()) << line.error().message;
    rest.remove_prefix(length + 1);
    if (const Json* all = line->find("tools"); all->is_array()) {
      tools = std::make_shared<const ToolSchemas>(all->items);
      continue;
    }
    Case one;
    one.name = line->find("name")->text;
    one.text = line->find("text")->text;
    one.end = line->find("end")->text == "cut_off" ? AnswerEnd::cut_off : AnswerEnd::finished;
    one.options.starts_in_reasoning = line->find("thinking")->boolean;
    one.options.newline_after_tags = line->find("style")->text == "glm-4.6";
    if (line->find("tools")->boolean) one.options.tools = tools;
    one.options.tag_ids = kIds;
    const Json& expect = *line->find("expect");
    one.expected.reasoning = expect.find("reasoning")->text;
    one.expected.content = expect.find("content")->text;
    for (const Json& call : expect.find("calls")->items)
      one.expected.calls.push_back({"call_" + std::to_string(one.expected.calls.size()),
                                    call.items[0].text, call.items[1].text, call.items[2].boolean});
    cases.push_back(std::move(one));
  }
  return cases;
}

/// Expects the events of each call to follow each other in order.
void expect_orderly(const std::vector<OutputEvent>& events) {
  std::size_t num_begun = 0;
  bool open = false;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::reasoning:
      case OutputEvent::Kind::content:
        EXPECT_FALSE(open) << "text within a call";
        EXPECT_FALSE(event.text.empty());
        break;
      case OutputEvent::Kind::call_begin:
        EXPECT_FALSE(open);
        EXPECT_EQ(event.call_index, num_begun);
        EXPECT_FALSE(event.text.empty());
        ++num_begun;
        open = true;
        break;
      case OutputEvent::Kind::call_arguments:
        EXPECT_TRUE(open);
        EXPECT_EQ(event.call_index + 1, num_begun);
        break;
      case OutputEvent::Kind::call_end:
        EXPECT_TRUE(open);
        open = false;
        break;
    }
  }
}

ParsedOutput collect(const std::vector<OutputEvent>& events) {
  expect_orderly(events);
  ParsedOutput output;
  for (const OutputEvent& event : events) output.add(event);
  return output;
}

ParsedOutput parse_pieces(const Case& one, const std::vector<std::string_view>& pieces) {
  OutputParser parser(one.options);
  std::vector<OutputEvent> events;
  for (const std::string_view piece : pieces) {
    std::vector<OutputEvent> step;  // the events of one piece
    parser.feed_text(piece, step);
    events.insert(events.end(), step.begin(), step.end());
  }
  parser.finish(one.end, events);
  return collect(events);
}

/// Feeds tags as their added tokens, and other text as tokens of up to `characters_max` characters.
ParsedOutput parse_tokens(const Case& one, std::size_t characters_max) {
  OutputParser parser(one.options);
  std::vector<OutputEvent> events;
  std::string_view rest = one.text;
  while (!rest.empty()) {
    std::size_t tag = 0;
    while (tag < kNumTags && !rest.starts_with(tag_text(static_cast<Tag>(tag)))) ++tag;
    if (tag < kNumTags) {
      const std::string_view text = tag_text(static_cast<Tag>(tag));
      parser.feed_token(kIds[tag], text, events);
      rest.remove_prefix(text.size());
      continue;
    }
    std::size_t length = 1;
    for (std::size_t characters = 1; length < rest.size(); ++length) {
      if ((static_cast<unsigned char>(rest[length]) & 0xC0U) == 0x80U) continue;
      if (rest[length] == '<' || characters++ == characters_max) break;
    }
    parser.feed_token(kOrdinaryToken, rest.substr(0, length), events);
    rest.remove_prefix(length);
  }
  parser.finish(one.end, events);
  return collect(events);
}

void expect_equal(const ParsedOutput& got, const ParsedOutput& expected) {
  EXPECT_EQ(got.reasoning, expected.reasoning);
  EXPECT_EQ(got.content, expected.content);
  ASSERT_EQ(got.calls.size(), expected.calls.size());
  for (std::size_t i = 0; i < got.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].id, expected.calls[i].id);
    EXPECT_EQ(got.calls[i].name, expected.calls[i].name);
    EXPECT_EQ(got.calls[i].arguments, expected.calls[i].arguments);
    EXPECT_EQ(got.calls[i].complete, expected.calls[i].complete);
    if (got.calls[i].complete) {
      const Result<Json> arguments = parse_json(got.calls[i].arguments);
      EXPECT_TRUE(arguments.ok() && arguments->is_object());
    }
  }
}

class OutputParserCorpus : public ::testing::Test {
 protected:
  const std::vector<Case> cases_ = read_cases();
};

TEST_F(OutputParserCorpus, HoldsEnoughCases) {
  EXPECT_GE(cases_.size(), 300U);
}

TEST_F(OutputParserCorpus, EachCaseWhole) {
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    expect_equal(parse_pieces(one, {one.text}), one.expected);
  }
}

TEST_F(OutputParserCorpus, EachCaseTokenByToken) {
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    for (const std::size_t characters_max : {1U, 2U, 3U, 5U, 100U})
      expect_equal(parse_tokens(one, characters_max), one.expected);
  }
}

TEST_F(OutputParserCorpus, EachCaseCutAtEveryPlace) {
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    const std::string_view text = one.text;
    for (std::size_t cut = 1; cut < text.size(); ++cut)
      expect_equal(parse_pieces(one, {text.substr(0, cut), text.substr(cut)}), one.expected);
  }
}

TEST_F(OutputParserCorpus, EachCaseByteByByte) {
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < one.text.size(); ++i)
      bytes.push_back(std::string_view(one.text).substr(i, 1));
    expect_equal(parse_pieces(one, bytes), one.expected);
  }
}

TEST_F(OutputParserCorpus, EachCaseInRandomPieces) {
  std::mt19937 random(3);
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string_view> pieces;
      std::string_view rest = one.text;
      while (!rest.empty()) {
        const std::size_t length = std::min<std::size_t>(random() % 12, rest.size());
        pieces.push_back(rest.substr(0, length));  // pieces may be empty
        rest.remove_prefix(length);
      }
      expect_equal(parse_pieces(one, pieces), one.expected);
    }
  }
}

}  // namespace
}  // namespace koho::chat
