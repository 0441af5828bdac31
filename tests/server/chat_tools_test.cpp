// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions as its clients see it: tool calls and structured output.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "chat_client.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

TEST(Chat, CallsATool) {
  const Reply reply = ask("What is the weather in Lisbon?",
                          std::string(R"("enable_thinking":false,"tools":)") + kTools);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "tool_calls");
  EXPECT_TRUE(at(json, "choices.0.message.content").is_null());
  EXPECT_EQ(text_at(json, "choices.0.message.tool_calls.0.type"), "function");
  EXPECT_EQ(text_at(json, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  EXPECT_EQ(text_at(json, "choices.0.message.tool_calls.0.function.arguments"),
            R"({"city": "Lisbon"})");
  EXPECT_TRUE(text_at(json, "choices.0.message.tool_calls.0.id").starts_with("call_"));
}

TEST(Chat, CallsAToolWhenItMust) {
  for (const char* choice :
       {R"("required")", R"({"type":"function","function":{"name":"web_search"}})"}) {
    const Json json =
        ask("What is 5 + 6?", std::string(R"("enable_thinking":false,"tool_choice":)") + choice +
                                  R"(,"tools":)" + kTools)
            .json();
    EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "tool_calls") << chat::dump_json(json);
    if (choice[0] == '{') {
      EXPECT_EQ(text_at(json, "choices.0.message.tool_calls.0.function.name"), "web_search");
    }
  }
}

TEST(Chat, NamesEachCallOfAllChoices) {
  const std::string more =
      R"("max_tokens":200,"n":3,"enable_thinking":false,"tools":)" + std::string(kTools);
  const std::string question = "What is the weather in Lisbon? Also, what is the weather in Paris?";
  std::set<std::string> whole;
  std::size_t calls = 0;
  const Json json = ask(question, more).json();
  for (const Json& choice : at(json, "choices").items)
    for (const Json& call : at(choice, "message.tool_calls").items) {
      whole.insert(text_at(call, "id"));
      ++calls;
    }
  EXPECT_EQ(calls, 6U) << chat::dump_json(json);
  EXPECT_EQ(whole.size(), calls) << chat::dump_json(json);
  std::set<std::string> streamed;
  const Reply stream = ask(question, more + R"(,"stream":true)");
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    for (const Json& call : at(*chat::parse_json(event), "choices.0.delta.tool_calls").items)
      if (call.find("id") != nullptr) streamed.insert(text_at(call, "id"));
  }
  EXPECT_EQ(streamed.size(), calls) << stream.body;
}

/// An answer of ours with such a number could not be sent back.
TEST(Chat, TakesArgumentsWithAnyNumber) {
  for (const char* number : {"1e999", "-1E400", "0.1e-999", "-0", "98765432109876543210"}) {
    const std::string object = fmt::format(R"({{"x": {}}})", number);
    std::string text;
    append_json_string(text, object);
    const std::string begin = R"({"model":"tiny","max_tokens":3,"messages":[)"
                              R"({"role":"user","content":"1"},{"role":"assistant",)";
    const Reply openai = post(
        shared_server().port(), kChatPath,
        begin + R"("tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":)" +
            text + R"(}}]},{"role":"tool","tool_call_id":"c","content":"2"}]})");
    EXPECT_EQ(openai.status, 200) << openai.body;
    const Reply anthropic =
        post(shared_server().port(), "/v1/messages",
             begin + R"("content":[{"type":"tool_use","id":"c","name":"f","input":)" + object +
                 R"(}]},{"role":"user","content":[)"
                 R"({"type":"tool_result","tool_use_id":"c","content":"2"}]}]})");
    EXPECT_EQ(anthropic.status, 200) << anthropic.body;
  }
}

constexpr const char* kTwoQuestions =
    "What is the weather in Lisbon? Also, what is the weather in Paris?";

TEST(Chat, EndsBehindOneCallWhenTheyMayNotBeParallel) {
  for (const bool thinks : {false, true}) {
    for (const std::size_t expected : {2U, 1U}) {
      const std::string more = fmt::format(
          R"("max_tokens":200,"enable_thinking":{},"parallel_tool_calls":{},"tools":{})", thinks,
          expected == 2, kTools);
      const Json whole = ask(kTwoQuestions, more).json();
      EXPECT_EQ(at(whole, "choices.0.message.tool_calls").items.size(), expected)
          << chat::dump_json(whole);
      EXPECT_EQ(text_at(whole, "choices.0.finish_reason"), "tool_calls");
      EXPECT_EQ(text_at(whole, "choices.0.message.tool_calls.0.function.arguments"),
                R"({"city": "Lisbon"})");
      Joined joined = join(ask(kTwoQuestions, more + R"(,"stream":true)"));
      EXPECT_EQ(joined.calls.size(), expected);
      EXPECT_EQ(joined.calls["0"], R"(get_weather:{"city": "Lisbon"})");
      EXPECT_EQ(joined.finish, "tool_calls");
      EXPECT_TRUE(joined.done);
    }
  }
  // An answer without a call is free text.
  const std::string quiet = R"("enable_thinking":false,"tools":)" + std::string(kTools);
  EXPECT_EQ(text_at(ask("What is 37 + 48?", R"("parallel_tool_calls":false,)" + quiet).json(),
                    "choices.0.message.content"),
            text_at(ask("What is 37 + 48?", quiet).json(), "choices.0.message.content"));
}

TEST(Chat, CallsAToolWithoutArgumentsWhereverItStands) {
  const std::string weather =
      R"({"type":"function","function":{"name":"get_weather","parameters":{"type":"object",)"
      R"("properties":{"city":{"type":"string"}},"required":["city"]}}})";
  for (const char* parameters :
       {R"(,"parameters":{"type":"object","properties":{}})", R"(,"parameters":{})", ""}) {
    const std::string time =
        std::string(R"({"type":"function","function":{"name":"get_time","strict":true)") +
        parameters + "}}";
    for (const std::string& tools : {weather + "," + time, time + "," + weather, time}) {
      for (const char* choice :
           {R"("required")", R"({"type":"function","function":{"name":"get_time"}})",
            R"("auto")"}) {
        const std::string more =
            std::string(R"("max_tokens":100,"enable_thinking":false,"tool_choice":)") + choice +
            R"(,"tools":[)" + tools + "]";
        const Reply reply = ask("What time is it?", more);
        ASSERT_EQ(reply.status, 200) << reply.body << "\n" << more;
        const Json call = at(reply.json(), "choices.0.message.tool_calls.0");
        if (std::string_view(choice) == R"("auto")") continue;
        EXPECT_TRUE(text_at(call, "function.name").starts_with("get_")) << reply.body;
        if (text_at(call, "function.name") == "get_time") {
          EXPECT_EQ(text_at(call, "function.arguments"), "{}") << reply.body;
        }
      }
    }
  }
}

TEST(Chat, AnswersAsBenchmarkClientsAsk) {
  // `vllm bench serve --backend openai-chat --ignore-eos`: its body, and what it reads of a stream.
  const Reply reply = post(
      shared_server().port(), kChatPath,
      R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"Tell me."}]}],)"
      R"("temperature":0.0,"max_completion_tokens":24,"stream":true,)"
      R"("stream_options":{"include_usage":true},"ignore_eos":true,"repetition_penalty":1.0,)"
      R"("chat_template_kwargs":{"enable_thinking":false}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Joined joined = join(reply);
  EXPECT_TRUE(joined.done);
  EXPECT_FALSE(joined.content.empty());
  EXPECT_EQ(joined.finish, "length");
  EXPECT_EQ(text_at(joined.usage, "completion_tokens"), "24");
  // It counts chunks with choices as tokens and reads usage from one without.
  const std::vector<std::string> events = reply.events();
  EXPECT_TRUE(at(*chat::parse_json(events.at(events.size() - 2)), "choices").items.empty());
}

TEST(Chat, KeepsToASchema) {
  const Json json =
      ask("Give me a JSON object with name = Anna, age = 31 and city = Rome.",
          R"("response_format":{"type":"json_schema","json_schema":{"name":"p","schema":{"type":"object",)"
          R"("properties":{"age":{"type":"integer"}},"required":["age"],"additionalProperties":false}}})")
          .json();
  const std::string content = text_at(json, "choices.0.message.content");
  const Result<Json> parsed = chat::parse_json(content);
  ASSERT_TRUE(parsed.ok()) << chat::dump_json(json);
  EXPECT_EQ(parsed->keys, std::vector<std::string>{"age"});
  const Json chosen = ask("Hello", R"("structured_outputs":{"choice":["north","south"]})").json();
  const std::string answer = text_at(chosen, "choices.0.message.content");
  EXPECT_TRUE(answer == "north" || answer == "south") << answer;
  const std::string tag =
      R"({"type":"structural_tag","format":{"type":"tag","begin":"<n>","content":)"
      R"({"type":"json_schema","json_schema":{"type":"integer","minimum":3,"maximum":7}},"end":"</n>"}})";
  for (const std::string& field :
       {"\"response_format\":" + tag, R"("structured_outputs":{"structural_tag":)" + tag + "}",
        R"("structured_outputs":{"structural_tag":)" + chat::dump_json(Json::string(tag)) + "}"}) {
    const std::string tagged = text_at(ask("Hello", field).json(), "choices.0.message.content");
    EXPECT_EQ(tagged.size(), 8U) << tagged;
    EXPECT_TRUE(tagged.starts_with("<n>") && tagged.ends_with("</n>")) << tagged;
  }
}

TEST(Chat, CallsAToolOrKeepsToASchema) {
  const std::string fields =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"p","schema":{"type":"object",)"
      R"("properties":{"sum":{"type":"integer"}},"required":["sum"],"additionalProperties":false}}},"tools":)" +
      std::string(kTools);
  const Json calling = ask("What is the weather in Lisbon?", fields).json();
  EXPECT_EQ(text_at(calling, "choices.0.message.tool_calls.0.function.name"), "get_weather")
      << chat::dump_json(calling);
  EXPECT_EQ(text_at(calling, "choices.0.finish_reason"), "tool_calls");
  for (const std::string& choice : {std::string(), std::string(R"(,"tool_choice":"none")")}) {
    const Json told =
        ask("Give me a JSON object with name = Anna, age = 31 and city = Rome.", fields + choice)
            .json();
    const Result<Json> parsed = chat::parse_json(text_at(told, "choices.0.message.content"));
    ASSERT_TRUE(parsed.ok()) << chat::dump_json(told);
    EXPECT_EQ(parsed->keys, std::vector<std::string>{"sum"});
  }
  // The error names the field at fault.
  const std::string strict =
      R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",)"
      R"("properties":{"a":{"type":"array","uniqueItems":true}}}}}])";
  for (const char* others :
       {R"(,"response_format":{"type":"json_object"})", R"(,"tool_choice":"required")"}) {
    const Reply refused = ask("Hello", strict + others);
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_EQ(text_at(refused.json(), "error.param"), "tools");
    EXPECT_EQ(text_at(refused.json(), "error.code"), "unsupported_schema");
  }
}

TEST(Chat, ToolChoiceNoneKeepsCallsOut) {
  for (const char* more : {R"("enable_thinking":false)", R"("enable_thinking":true)",
                           R"("enable_thinking":false,"logit_bias":{"1":1})"}) {
    const std::string fields =
        std::string(R"("max_tokens":100,"tool_choice":"none",)") + more + R"(,"tools":)" + kTools;
    const Reply reply = ask("What is the weather in Lisbon?", fields);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(at(reply.json(), "choices.0.message.tool_calls").is_null());
    EXPECT_EQ(reply.body.find("tool_call>"), std::string::npos) << reply.body;
    EXPECT_NE(text_at(reply.json(), "choices.0.finish_reason"), "tool_calls");
    const Reply stream = ask("What is the weather in Lisbon?", fields + R"(,"stream":true)");
    EXPECT_EQ(join(stream).content.find("tool_call>"), std::string::npos) << stream.body;
  }
}

TEST(Chat, OnlyAllowedToolsAreCalled) {
  const std::string tool = R"([{"type":"function","function":{"name":"web_search"}}])";
  const auto allowed = [](const std::string& mode, const std::string& tools) {
    return R"("max_tokens":100,"enable_thinking":false,"tool_choice":{"type":"allowed_tools",)"
           R"("allowed_tools":{"mode":")" +
           mode + R"(","tools":)" + tools + R"(}},"tools":)" + kTools;
  };
  const std::string question = "What is the weather in Lisbon?";
  for (const char* mode : {"auto", "required"}) {
    const Reply reply = ask(question, allowed(mode, tool));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json calls = at(reply.json(), "choices.0.message.tool_calls");
    EXPECT_TRUE(!calls.items.empty() || std::string_view(mode) == "auto") << reply.body;
    for (const Json& call : calls.items)
      EXPECT_EQ(text_at(call, "function.name"), "web_search") << reply.body;
    EXPECT_EQ(reply.body.find("get_weather"), std::string::npos) << reply.body;
    // The flat form of /v1/responses.
    const Reply flat = post(
        shared_server().port(), "/v1/responses",
        std::string(R"({"model":"tiny","temperature":0,"max_output_tokens":100,"reasoning":)") +
            R"({"effort":"none"},"input":"What is the weather in Lisbon?","tools":)" +
            R"([{"type":"function","name":"get_weather","parameters":{"type":"object",)"
            R"("properties":{"city":{"type":"string"}}}},{"type":"function","name":"web_search",)"
            R"("parameters":{"type":"object","properties":{"query":{"type":"string"}}}}],)"
            R"("tool_choice":{"type":"allowed_tools","mode":")" +
            mode + R"(","tools":[{"type":"function","name":"web_search"}]}})");
    ASSERT_EQ(flat.status, 200) << flat.body;
    bool called = false;
    for (const Json& item : at(flat.json(), "output").items) {
      if (text_at(item, "type") != "function_call") continue;
      called = true;
      EXPECT_EQ(text_at(item, "name"), "web_search") << flat.body;
    }
    EXPECT_TRUE(called || std::string_view(mode) == "auto") << flat.body;
  }
  // All tools allowed: the same as without the field.
  const std::string both = R"([{"type":"function","function":{"name":"web_search"}},)"
                           R"({"type":"function","function":{"name":"get_weather"}}])";
  EXPECT_EQ(text_at(ask(question, allowed("auto", both)).json(),
                    "choices.0.message.tool_calls.0.function.name"),
            "get_weather");
  // None of the tools.
  const std::string web = R"([{"type":"web_search"}])";
  EXPECT_TRUE(
      at(ask(question, allowed("auto", web)).json(), "choices.0.message.tool_calls").is_null());
  for (const std::string& wrong :
       {allowed("required", web), allowed("auto", "[]"), allowed("auto", "7"), allowed("any", tool),
        allowed("auto", R"([{"type":"function","function":{"name":"other"}}])"),
        allowed("auto", R"([{"type":"function"}])")}) {
    const Reply refused = ask(question, wrong);
    EXPECT_EQ(refused.status, 400) << wrong;
    EXPECT_TRUE(text_at(refused.json(), "error.param").starts_with("tool_choice")) << refused.body;
  }
}

TEST(Chat, AResponseFormatHasManyNames) {
  const std::string schema =
      R"({"type":"object","properties":{"age":{"type":"integer"}},"required":["age"]})";
  std::string quoted;
  append_json_string(quoted, schema);
  for (const std::string& field :
       {R"("response_format":{"type":"json_object","schema":)" + schema + "}",
        R"("json_schema":)" + quoted, R"("json_schema":)" + schema,
        R"("structured_outputs":{"disable_any_whitespace":true,"disable_fallback":true,"json":)" +
            schema + "}"}) {
    const Reply reply =
        ask("Give me a JSON object with name = Anna, age = 31 and city = Rome.", field);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Result<Json> parsed =
        chat::parse_json(text_at(reply.json(), "choices.0.message.content"));
    ASSERT_TRUE(parsed.ok()) << reply.body;
    EXPECT_EQ(parsed->keys, std::vector<std::string>{"age"}) << field;
  }
  for (const char* field :
       {R"("regex":"(north|south)!")", R"("ebnf":"root ::= \"north!\" | \"south!\"")"}) {
    const std::string said = text_at(ask("Hello", field).json(), "choices.0.message.content");
    EXPECT_TRUE(said == "north!" || said == "south!") << said;
  }
  const Reply blank = ask("Hello", R"("structured_outputs":{"choice":["\n  "]})");
  EXPECT_EQ(text_at(blank.json(), "choices.0.message.content"), "\n  ") << blank.body;
  const Reply two = ask("Hello", R"("regex":"a","response_format":{"type":"json_object"})");
  EXPECT_EQ(two.status, 400) << two.body;
  EXPECT_EQ(ask("Hello", R"("structured_outputs":{"json":true,"disable_any_whitespace":1})").status,
            400);
}

TEST(Chat, ReadsATurnOfToolsAndResults) {
  const std::string request =
      std::string(
          R"({"model":"tiny","temperature":0,"messages":[)"
          R"({"role":"user","content":"What is the weather in Lisbon?"},)"
          R"({"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",)"
          R"("function":{"name":"get_weather","arguments":"{\"city\": \"Lisbon\"}"}}]},)"
          R"({"role":"tool","tool_call_id":"call_1","content":"{\"temperature\": 24, \"condition\": \"sunny\"}"}],)"
          R"("tools":)") +
      kTools + "}";
  const Reply reply = post(shared_server().port(), kChatPath, request);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(text_at(reply.json(), "choices.0.message.content"),
            "The weather in Lisbon is sunny with 24 degrees.");
}

}  // namespace
}  // namespace koho::server
