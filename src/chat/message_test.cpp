// SPDX-License-Identifier: Apache-2.0
#include "chat/message.h"

#include <gtest/gtest.h>

namespace koho::chat {
namespace {

Result<Conversation> read(std::string_view text) {
  Result<Json> request = parse_json(text);
  if (!request.ok()) return request.error();
  return read_conversation(*request);
}

Result<Conversation> read_and_normalise(std::string_view text) {
  KOHO_TRY_ASSIGN(Conversation conversation, read(text));
  KOHO_TRY(normalize(conversation));
  return conversation;
}

std::string refusal(std::string_view text) {
  const Result<Conversation> conversation = read_and_normalise(text);
  return conversation.ok() ? "accepted" : conversation.error().message;
}

std::string arguments_of(std::string_view text) {
  std::size_t values_left = 1000;
  return dump_json(*read_arguments(text, values_left));
}

TEST(Message, ReadsArgumentsFromAnObjectOrAString) {
  const auto call = [](std::string_view arguments) {
    return read(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f")" +
                std::string(arguments) + "}}]}]}");
  };
  EXPECT_EQ(dump_json(call(R"(,"arguments":{"b":1,"a":2})")->messages[0].tool_calls[0].arguments),
            R"({"b": 1, "a": 2})");
  EXPECT_EQ(
      dump_json(
          call(R"(,"arguments":"{\"b\":1,\"a\":[1e5]}")")->messages[0].tool_calls[0].arguments),
      R"({"b": 1, "a": [100000.0]})");
  for (const char* empty :
       {"", R"(,"arguments":null)", R"(,"arguments":"")", R"(,"arguments":" ")"})
    EXPECT_EQ(dump_json(call(empty)->messages[0].tool_calls[0].arguments), "{}") << empty;
  EXPECT_EQ(call(R"(,"arguments":3)")
                .error()
                .message.rfind("messages[0].tool_calls[0].function.arguments: ", 0),
            0U);
}

TEST(Message, ReadsArgumentsThatBreakOff) {
  for (const auto& [text, expected] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"city": "Paris")", R"({"city": "Paris"})"},
           {R"({"city": "Par)", R"({"city": "Par"})"},
           {R"({"city":)", R"({"city": null})"},
           {R"({"city)", R"({"city": null})"},
           {"{", "{}"},
           {R"({"a": [1, {"b": 2)", R"({"a": [1, {"b": 2}]})"},
           {R"({"a": "x\"y\)", R"({"a": "x\"y"})"},
           {R"({"a": "x\\)", R"({"a": "x\\"})"},
           {R"({"a": "x\u00e)", R"({"a": "x"})"},
           {R"({"a": "}", "b": 1)", R"({"a": "}", "b": 1})"},
           {R"({"a": 1, "a": 3, "b": {"c": 1, "c": 2)", R"({"a": 3, "b": {"c": 2}})"},
           {"[1]", R"({"arguments": "[1]"})"},
           {"not JSON", R"({"arguments": "not JSON"})"},
           {R"({"a": 1} trailing)", R"({"arguments": "{\"a\": 1} trailing"})"}})
    EXPECT_EQ(arguments_of(text), expected) << text;
}

TEST(Message, NormalizeMakesWhatTheServerRenders) {
  const Result<Conversation> result = read_and_normalise(R"({"messages":[
      {"role":"developer","content":"d"},
      {"role":"assistant","content":null,"reasoning":"r"},
      {"role":"assistant","reasoning":"r","reasoning_content":"rc"},
      {"role":"tool","content":[{"type":"text","text":"a"},"b",{"output":"c"}]},
      {"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]})");
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->messages[0].role, "system");
  EXPECT_EQ(result->messages[1].content, Json::string(""));
  EXPECT_EQ(result->messages[1].reasoning_content, "r");
  EXPECT_EQ(result->messages[2].content, Json::string(""));
  EXPECT_EQ(result->messages[2].reasoning_content, "rc");
  EXPECT_EQ(result->messages[3].content, Json::string("abc"));
  EXPECT_EQ(visible_text(result->messages[4].content), "xy");
}

TEST(Message, NormalizePutsResultsIntoTheOrderOfTheirCalls) {
  const auto results = [](const std::string& calls) {
    const Result<Conversation> result = read_and_normalise(
        R"({"messages":[{"role":"assistant","content":"","tool_calls":[)" + calls +
        R"(]},{"role":"tool","tool_call_id":"c","content":"3"},
            {"role":"tool","tool_call_id":"a","content":"1"},{"role":"tool","content":"-"},
            {"role":"tool","tool_call_id":"b","content":"2"},{"role":"user","content":"?"},
            {"role":"tool","tool_call_id":"a","content":"4"}]})");
    std::string texts;
    for (const Message& message : result->messages) texts += visible_text(message.content);
    return texts;
  };
  EXPECT_EQ(results(R"({"id":"a","name":"f"},{"id":"b","name":"f"},{"id":"c","name":"f"})"),
            "123-?4");
  EXPECT_EQ(results(R"({"id":"a","name":"f"},{"id":"b","name":"f"},{"id":"a","name":"f"})"),
            "31-2?4")
      << "ids that are used twice tell nothing";
  EXPECT_EQ(results(R"({"name":"f"},{"name":"f"})"), "31-2?4");
}

TEST(Message, NormalizeNamesTheFieldItRefuses) {
  EXPECT_EQ(refusal(R"({"messages":[{"role":"function","content":"x"}]})"),
            "messages[0].role: must be one of system, developer, user, assistant, tool, found "
            "\"function\"");
  EXPECT_EQ(refusal(R"({"messages":[{"role":"user","content":3}]})"),
            "messages[0].content: expected a string or an array of parts, found a number");
  EXPECT_EQ(
      refusal(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},
                                                               {"type":"image_url","image_url":{}}]}]})"),
      "messages[0].content[1]: a content part of type \"image_url\" is not supported: this model "
      "accepts text only; send parts of type \"text\"");
  EXPECT_EQ(refusal(R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})"),
            "messages[0].content[0].text: expected a string, found nothing");
}

TEST(Message, ReadNamesTheFieldThatIsWrong) {
  EXPECT_EQ(refusal("[]"), "the chat request: expected an object, found an array");
  EXPECT_EQ(refusal("{}"), "messages: expected an array, found nothing");
  EXPECT_EQ(refusal(R"({"messages":[3]})"), "messages[0]: expected an object, found a number");
  EXPECT_EQ(refusal(R"({"messages":[{"content":"x"}]})"),
            "messages[0].role: expected a string, found nothing");
  EXPECT_EQ(refusal(R"({"messages":[],"tools":{"a":1}})"),
            "tools: expected an array, found an object");
  EXPECT_EQ(refusal(R"({"messages":[],"enable_thinking":"no"})"),
            "enable_thinking: expected true or false, found a string");
  EXPECT_EQ(
      refusal(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":1}}]}]})"),
      "messages[0].tool_calls[0].function.name: expected a string, found a number");
}

}  // namespace
}  // namespace koho::chat
