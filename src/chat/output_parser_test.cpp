// SPDX-License-Identifier: Apache-2.0
// Which events a stream gets while an answer grows. tests/chat compares whole results.
#include "chat/output_parser.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace koho::chat {
namespace {

constexpr TagIds kIds{50, 51, 52, 53, 54, 55, 56, 57};

OutputParserOptions with_tools() {
  OutputParserOptions options;
  options.tools = std::make_shared<const ToolSchemas>(
      parse_json(R"([{"function":{"name":"write","parameters":{"properties":
      {"text":{"type":"string"},"mode":{"type":"integer"}}}}},{"function":{"name":"write_all"}}])")
          ->items);
  options.tag_ids = kIds;
  return options;
}

/// Feeds the pieces one by one and returns the events of each, as "kind:text".
std::vector<std::string> stream(OutputParser& parser, const std::vector<std::string>& pieces) {
  constexpr const char* kKinds[] = {"reasoning", "content", "begin", "arguments", "end"};
  std::vector<std::string> steps;
  for (const std::string& piece : pieces) {
    std::vector<OutputEvent> out;
    parser.feed_text(piece, out);
    std::string step;
    for (const OutputEvent& event : out)
      step += std::string(step.empty() ? "" : " ") + kKinds[static_cast<int>(event.kind)] + ":" +
              event.text;
    steps.push_back(step);
  }
  return steps;
}

TEST(OutputParser, StreamsAStringAsItGrowsAndTheNameOnce) {
  OutputParser parser(with_tools());
  EXPECT_EQ(
      stream(parser, {"<tool_call>wri", "te", "<arg_key>text</arg", "_key><arg_value>", "a\n",
                      "\"b", "</arg_", "value>", "</tool_call>"}),
      (std::vector<std::string>{"", "", "begin:write", "arguments:{\"text\": \"", "arguments:a\\n",
                                "arguments:\\\"b", "", "", "arguments:\"} end:"}));
  EXPECT_EQ(parser.num_complete_calls(), 1U);
}

TEST(OutputParser, SendsANumberWhenItIsComplete) {
  OutputParser parser(with_tools());
  EXPECT_EQ(stream(parser, {"<tool_call>write<arg_key>mode</arg_key><arg_value>1", "2",
                            "</arg_value>", "</tool_call>"}),
            (std::vector<std::string>{"begin:write arguments:{\"mode\": ", "", "",
                                      "arguments:12} end:"}));
}

TEST(OutputParser, SendsAStringWhereANumberIsNotAllowed) {
  OutputParserOptions options = with_tools();
  options.tools = std::make_shared<const ToolSchemas>(
      parse_json(R"([{"name":"f","parameters":{"properties":{"a":{"oneOf":[
          {"enum":["1","2"]},{"type":"integer","minimum":5}]}}}}])")
          ->items);
  for (const auto& [text, value] : {std::pair{"1", "\"1\""}, std::pair{"5", "5"}}) {
    OutputParser parser(options);
    EXPECT_EQ(stream(parser, {"<tool_call>f<arg_key>a</arg_key><arg_value>", text,
                              "</arg_value></tool_call>"}),
              (std::vector<std::string>{"begin:f arguments:{\"a\": ", "",
                                        std::string("arguments:") + value + "} end:"}));
  }
}

TEST(OutputParser, KeepsTheBlanksOfADeclaredKey) {
  OutputParserOptions options = with_tools();
  options.tools = std::make_shared<const ToolSchemas>(
      parse_json(R"([{"name":"f","parameters":{"properties":{" a ":{"type":"integer"}},
                                               "required":[" c"]}}])")
          ->items);
  OutputParser parser(options);
  EXPECT_EQ(stream(parser, {"<tool_call>f<arg_key> a </arg_key><arg_value>1</arg_value>"
                            "<arg_key> b </arg_key><arg_value>2</arg_value>"
                            "<arg_key> c</arg_key><arg_value>3</arg_value></tool_call>"}),
            (std::vector<std::string>{"begin:f arguments:{\" a \": 1, \"b\": 2, \" c\": 3} end:"}));
}

TEST(OutputParser, SendsAZeroArgumentCallAtItsEnd) {
  OutputParser parser(with_tools());
  EXPECT_EQ(stream(parser, {"<tool_call>write", "_all", "</tool_call>"}),
            (std::vector<std::string>{"", "", "begin:write_all arguments:{} end:"}));
}

TEST(OutputParser, HoldsBackOnlyWhatMayBecomeATag) {
  OutputParser parser(with_tools());
  EXPECT_EQ(stream(parser, {"a <", "b <tool", "_box> c", " <t", "ool_call>"}),
            (std::vector<std::string>{"content:a ", "content:<b ", "content:<tool_box> c",
                                      "content: ", ""}));
}

TEST(OutputParser, KeepsTheTextOfAGrammarAsItIs) {
  const auto content = [](bool newline_after_tags, const std::vector<std::string>& pieces,
                          AnswerEnd end = AnswerEnd::finished) {
    OutputParserOptions options = with_tools();
    options.starts_in_reasoning = true;
    options.newline_after_tags = newline_after_tags;
    options.exact_content = true;
    OutputParser parser(options);
    std::vector<OutputEvent> out;
    for (const std::string& piece : pieces) parser.feed_text(piece, out);
    parser.finish(end, out);
    ParsedOutput parsed;
    for (const OutputEvent& event : out) parsed.add(event);
    return parsed.content;
  };
  for (const bool newlines : {false, true}) {
    EXPECT_EQ(content(newlines, {"hm</think>", " \n"}), " \n");
    EXPECT_EQ(content(newlines, {"hm</think>", "\n", " "}, AnswerEnd::cut_off), "\n ");
    EXPECT_EQ(content(newlines, {"hm</think>", "\n\n", "a\n"}), "\n\na\n");
    EXPECT_EQ(content(newlines, {"hm</think>", " </think>", "<think>"}), " </think><think>");
    EXPECT_EQ(content(newlines, {"</think>\n<tool_call>write_all</tool_call>\n"}), "");
  }
}

TEST(OutputParser, NeverSplitsACharacter) {
  OutputParser parser(with_tools());
  EXPECT_EQ(stream(parser, {"\xf0\x9f", "\x8e", "\x89\xe2", "\x82\xac"}),
            (std::vector<std::string>{"", "", "content:🎉", "content:€"}));
}

TEST(OutputParser, ATagSpelledInOrdinaryTokensIsText) {
  OutputParserOptions options = with_tools();
  options.starts_in_reasoning = true;
  OutputParser parser(options);
  std::vector<OutputEvent> out;
  parser.feed_token(7, "the tag </think> is", out);
  parser.feed_token(51, "</think>", out);
  parser.feed_token(7, "<tool_call>", out);
  parser.finish(AnswerEnd::finished, out);
  ParsedOutput output;
  for (const OutputEvent& event : out) output.add(event);
  EXPECT_EQ(output.reasoning, "the tag </think> is");
  EXPECT_EQ(output.content, "<tool_call>");
}

TEST(OutputParser, ABrokenCharacterBeforeATagIsKept) {
  OutputParser parser(with_tools());
  std::vector<OutputEvent> out;
  parser.feed_token(52, "\xef\xbf\xbd<tool_call>", out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].text, "\xef\xbf\xbd");
}

TEST(OutputParser, CountsDeviationsFromTheFormat) {
  OutputParserOptions options = with_tools();
  OutputParser parser(options);
  std::vector<OutputEvent> out;
  parser.feed_text(
      "<tool_call>nope</tool_call><tool_call></tool_call><tool_call>write<arg_key>text</arg_key>x</"
      "arg_value>"
      "</tool_call><think>a",
      out);
  parser.finish(AnswerEnd::finished, out);
  EXPECT_EQ(parser.counts().unknown_tools, 1U);
  EXPECT_EQ(parser.counts().malformed_calls, 1U);
  EXPECT_EQ(parser.counts().mended_calls, 1U);
  EXPECT_EQ(parser.counts().unclosed_reasoning, 1U);
}

/// Processor seconds to parse `start` followed by `piece` n times: the least of three runs.
double seconds_of(const std::string& start, const std::string& piece, int n) {
  double least = 1e9;
  for (int run = 0; run < 3; ++run) {
    const std::clock_t begin = std::clock();
    OutputParser parser(with_tools());
    std::vector<OutputEvent> out;
    parser.feed_text(start, out);
    for (int i = 0; i < n; ++i) {
      out.clear();
      parser.feed_text(piece, out);
    }
    parser.finish(AnswerEnd::finished, out);
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST(OutputParser, TakesTimeLinearInItsInput) {
  // Ten times the input must take about ten times as long, not a hundred times. The factor 40 and
  // the 2 ms allow for noise.
  const std::string value = "<tool_call>write<arg_key>text</arg_key><arg_value>";
  const std::pair<std::string, std::string> inputs[] = {
      {"", " "},
      {"", "<"},
      {"<tool_call>write<arg_key>text</arg_key>", " "},
      {value + "x</arg_value>", "\\n"},
      {value + "x", "<think>"},
      {"<tool_call>write", "<arg_key>a</arg_key><arg_value>1</arg_value>"}};
  for (const auto& [start, piece] : inputs)
    EXPECT_LT(seconds_of(start, piece, 200000),
              40 * std::max(seconds_of(start, piece, 20000), 0.002))
        << start << piece;
}

}  // namespace
}  // namespace koho::chat
