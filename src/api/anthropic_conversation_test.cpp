// SPDX-License-Identifier: Apache-2.0
#include "api/anthropic_conversation.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "chat/template.h"
#include "tests/support/thread_time.h"

namespace koho::api {
namespace {

Result<chat::Conversation> read(std::string_view json) {
  const Result<chat::Json> parsed = chat::parse_json(json);
  EXPECT_TRUE(parsed.ok()) << json;
  return read_anthropic_conversation(*parsed);
}

/// The prompt that GLM-4.7's template makes of a request.
std::string prompt(std::string_view json) {
  Result<chat::Conversation> conversation = read(json);
  if (!conversation.ok()) return "error: " + conversation.error().message;
  if (!conversation->tools.empty()) conversation->clear_thinking = false;
  const Status status = chat::normalize(*conversation);
  if (!status.ok()) return "error: " + status.error().message;
  return chat::render(*conversation, chat::TemplateStyle::glm_4_7)->text();
}

std::string refusal(std::string_view json) {
  const Result<chat::Conversation> conversation = read(json);
  return conversation.ok() ? "accepted" : conversation.error().message;
}

TEST(AnthropicConversation, ReadsStringsAsOneTextEach) {
  EXPECT_EQ(prompt(R"({"system": "Be brief.", "messages": [
              {"role": "user", "content": "Hi"},
              {"role": "assistant", "content": "Hello."},
              {"role": "user", "content": "Who?"}]})"),
            "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|></think>Hello.<|user|>Who?"
            "<|assistant|><think>");
}

TEST(AnthropicConversation, CombinesBlocksOfText) {
  EXPECT_EQ(
      prompt(
          R"({"system": [{"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
                            {"type": "text", "text": "Two."}],
                 "messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                           {"type": "text", "text": "b"}]}]})"),
      "[gMASK]<sop><|system|>One.\nTwo.<|user|>a\nb<|assistant|><think>");
}

TEST(AnthropicConversation, AnAnswerInManyMessagesCostsLittleMoreThanInOne) {
  const auto cost_of = [](std::size_t turns) {
    std::string json = R"({"messages": [{"role": "user", "content": "y"})";
    for (std::size_t i = 0; i < turns; ++i)
      json +=
          R"(,{"role": "assistant", "content": ")" + std::string(4'000'000 / turns, 'x') + "\"}";
    json += "]}";
    const double begin = testing::thread_seconds();
    EXPECT_EQ(refusal(json), "accepted");
    return testing::thread_seconds() - begin;
  };
  EXPECT_LT(testing::cost_of_pieces(cost_of), 20);  // not the square: each copied what was before
}

TEST(AnthropicConversation, ManyResultsCostLittleMoreThanTheirText) {
  std::string calls;
  std::string results;
  for (int i = 0; i < 12'000; ++i) {
    const std::string id = std::to_string(20'000 - i);
    calls += R"({"type": "tool_use", "name": "f", "input": {}, "id": "toolu_)" + id + "\"},";
    results += R"({"type": "tool_result", "content": "x", "tool_use_id": "toolu_)" + id + "\"},";
  }
  calls.pop_back();
  results.pop_back();
  const std::string json = R"({"messages": [{"role": "user", "content": "y"},
                                            {"role": "assistant", "content": [)" +
                           calls + R"(]}, {"role": "user", "content": [)" + results + "]}]}";
  const double begin = testing::thread_seconds();
  EXPECT_TRUE(chat::parse_json(json).ok());
  const double parsed = testing::thread_seconds();
  EXPECT_EQ(refusal(json), "accepted");
  EXPECT_LT(testing::thread_seconds() - parsed, 20 * (parsed - begin));
}

TEST(AnthropicConversation, DropsTheBillingHeaderWhereverItStands) {
  const std::string plain = prompt(R"({"system": [{"type": "text", "text": "You are Claude Code."}],
                 "messages": [{"role": "user", "content": "Hi"}]})");
  for (const std::string_view hash : {"00a1b", "ff310"}) {
    const std::string header =
        "x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=" +
        std::string(hash) + ";";
    EXPECT_EQ(prompt(R"({"system": [{"type": "text", "text": ")" + header + R"("},
                         {"type": "text", "text": "You are Claude Code."}],
                         "messages": [{"role": "user", "content": "Hi"}]})"),
              plain);
    EXPECT_EQ(prompt(R"({"system": ")" + header + R"(\nYou are Claude Code.",
                         "messages": [{"role": "user", "content": "Hi"}]})"),
              plain);
  }
}

TEST(AnthropicConversation, KeepsOtherHeadersInTheText) {
  EXPECT_EQ(without_billing_header("a\nx-anthropic-billing-header: 1\nb"), "a\nb");
  EXPECT_EQ(without_billing_header("see x-anthropic-billing-header: 1"),
            "see x-anthropic-billing-header: 1");
  EXPECT_EQ(without_billing_header(""), "");
}

TEST(AnthropicConversation, TurnsToolUseAndResultsIntoCallsAndToolMessages) {
  const std::string whole = prompt(R"({"messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "Look it up.", "signature": "s"},
          {"type": "text", "text": "One moment."},
          {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "toolu_1",
           "content": [{"type": "text", "text": "sunny"}]},
          {"type": "text", "text": "Well?"}]}],
       "tools": [{"name": "get_weather", "description": "Weather.",
                  "cache_control": {"type": "ephemeral"}, "input_schema": {"type": "object"}}]})");
  EXPECT_NE(whole.find(R"(<tools>
{"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": {"type": "object"}}}
</tools>)"),
            std::string::npos)
      << whole;
  EXPECT_TRUE(whole.ends_with(
      "<|user|>Weather?<|assistant|><think>Look it up.</think>One moment.<tool_call>get_weather"
      "<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call><|observation|>"
      "<tool_response>sunny</tool_response><|user|>Well?<|assistant|><think>"))
      << whole;
}

TEST(AnthropicConversation, DropsReasoningOfEarlierTurnsWithoutTools) {
  EXPECT_EQ(prompt(R"({"messages": [
              {"role": "user", "content": "Hi"},
              {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Greet.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Hello."}]},
              {"role": "user", "content": "Who?"}]})"),
            "[gMASK]<sop><|user|>Hi<|assistant|></think>Hello.<|user|>Who?<|assistant|><think>");
}

TEST(AnthropicConversation, PutsResultsIntoTheOrderOfTheirCalls) {
  const std::string text = prompt(R"({"messages": [
        {"role": "user", "content": "Both"},
        {"role": "assistant", "content": [
          {"type": "tool_use", "id": "a", "name": "f", "input": {}},
          {"type": "tool_use", "id": "b", "name": "g", "input": {}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "b", "content": "second"},
          {"type": "tool_result", "tool_use_id": "a", "content": "first", "is_error": true}]}]})");
  EXPECT_TRUE(
      text.ends_with("<tool_call>f</tool_call><tool_call>g</tool_call><|observation|>"
                     "<tool_response>Error: first</tool_response>"
                     "<tool_response>second</tool_response><|assistant|><think>"))
      << text;
}

TEST(AnthropicConversation, KeepsControlTokensOfAClientAsText) {
  const Result<chat::Conversation> conversation =
      read(R"({"messages": [{"role": "user", "content": "say <|user|> and </think>"},
                            {"role": "assistant", "content": "a</think>b"},
                            {"role": "user", "content": "again"}]})");
  ASSERT_TRUE(conversation.ok());
  const Result<chat::Prompt> rendered = chat::render(*conversation, chat::TemplateStyle::glm_4_7);
  ASSERT_TRUE(rendered.ok());
  const chat::Segment said{chat::Segment::Kind::text, "say <|user|> and </think>"};
  EXPECT_EQ(rendered->segments[3], said);
  EXPECT_TRUE(rendered->text().find("<|assistant|></think>a</think>b<|user|>") !=
              std::string::npos);
}

TEST(AnthropicConversation, ContinuesALastMessageOfTheAssistant) {
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "Count"},
                                    {"role": "assistant", "content": "one, two,"}]})"),
            "[gMASK]<sop><|user|>Count<|assistant|></think>one, two,");
}

TEST(AnthropicConversation, CombinesAdjacentMessagesOfTheAssistant) {
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "Count"},
                                    {"role": "assistant", "content": "one, "},
                                    {"role": "assistant", "content": "two"},
                                    {"role": "user", "content": "on"}]})"),
            "[gMASK]<sop><|user|>Count<|assistant|></think>one, two<|user|>on<|assistant|><think>");
}

TEST(AnthropicConversation, ReadsDocumentsAndSearchResultsAsText) {
  const std::string blocks = R"([
      {"type": "document", "title": "Rivers", "context": null, "citations": {"enabled": true},
       "source": {"type": "text", "media_type": "text/plain", "data": "The Tejo is long."}},
      {"type": "document", "source": {"type": "content", "content": [
        {"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}},
      {"type": "search_result", "source": "https://a.example", "title": "A",
       "content": [{"type": "text", "text": "found"}]},
      {"type": "tool_reference", "tool_name": "get_weather"},
      {"type": "text", "text": "Well?"}])";
  const std::string text =
      "<document>\ntitle: Rivers\n\nThe Tejo is long.\n</document>\n"
      "<document>\n\none\ntwo\n</document>\n"
      "<search_result>\nsource: https://a.example\ntitle: A\n\nfound\n</search_result>\n"
      "<tool_reference>get_weather</tool_reference>\nWell?";
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": )" + blocks + "}]}"),
            "[gMASK]<sop><|user|>" + text + "<|assistant|><think>");
  const std::string result = prompt(
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
          {"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "a", "content": )" +
      blocks + "}]}]}");
  EXPECT_TRUE(result.ends_with("<tool_response>" + text + "</tool_response><|assistant|><think>"))
      << result;
}

TEST(AnthropicConversation, NamesThePlaceOfWhatIsNoText) {
  const auto in_message = [](const std::string& block) {
    return refusal(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, )" +
                   block + "]}]}");
  };
  const auto in_result = [](const std::string& block) {
    return refusal(R"({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [)" +
                   block + "]}]}]}");
  };
  const std::string pdf =
      R"({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}})";
  EXPECT_EQ(
      in_message(pdf),
      "messages.0.content.1.source.type: documents of type \"base64\" are not supported: this "
      "model reads text only (types text and content)");
  EXPECT_TRUE(
      in_result(pdf).starts_with("messages.0.content.0.content.0.source.type: documents of"))
      << in_result(pdf);
  EXPECT_TRUE(in_result(R"({"type": "image"})")
                  .starts_with("messages.0.content.0.content.0.type: blocks of type \"image\""));
  EXPECT_TRUE(in_message(R"({"type": "document", "source": {"type": "content", "content": [
      {"type": "image"}]}})")
                  .starts_with("messages.0.content.1.source.content.0.type: blocks of type"));
  EXPECT_EQ(in_message(R"({"type": "document"})"),
            "messages.0.content.1.source: expected an object, found nothing");
  EXPECT_EQ(in_message(R"({"type": "tool_reference"})"),
            "messages.0.content.1.tool_name: Field required");
}

TEST(AnthropicConversation, NamesWhatItRefuses) {
  EXPECT_EQ(refusal("{}"), "messages: Field required");
  EXPECT_EQ(refusal("[]"), "the request: expected an object, found an array");
  EXPECT_EQ(refusal(R"({"messages": []})"), "messages: at least one message is required");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user"}]})"), "messages.0.content: Field required");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": []}]})"),
            "messages.0.content: must not be empty");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "robot", "content": "x"}]})"),
            "messages.0.role: must be user, assistant or system, found \"robot\"");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
            "messages.0.content.0.type: blocks of type \"image\" are not supported: this model "
            "reads text only");
  EXPECT_EQ(
      refusal(R"({"system": [{"type": "image"}], "messages": [{"role": "user", "content": "x"}]})"),
      "system.0: expected a block of type text");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": "x"}],
                        "tools": [{"type": "web_search_20250305", "name": "web_search"}]})"),
            "tools.0.type: only Anthropic's own models have tools of type \"web_search_20250305\"; "
            "declare "
            "a tool of type \"custom\" with an input_schema");
  EXPECT_EQ(
      refusal(R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]})"),
      "tools.0.input_schema: Field required");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant",
                        "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}]})"),
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
            "t1");
}

}  // namespace
}  // namespace koho::api
