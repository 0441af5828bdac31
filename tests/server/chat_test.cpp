// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions as its clients see it.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"get_weather","description":"Get the weather in a city.",)"
    R"("parameters":{"type":"object","properties":{"city":{"type":"string","description":"The city."}},"required":["city"]}}},)"
    R"({"type":"function","function":{"name":"web_search","description":"Search the web.",)"
    R"("parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}}])";

std::string body(const std::string& question, const std::string& more) {
  std::string text = R"({"model":"tiny",)";
  if (more.find("temperature") == std::string::npos) text += R"("temperature":0,)";
  text += R"("messages":[{"role":"user","content":)";
  append_json_string(text, question);
  return text + "}]" + (more.empty() ? "" : "," + more) + "}";
}

Reply ask(const std::string& question, const std::string& more = "") {
  return post(shared_server().port(), kPath, body(question, more));
}

/// A stream put together again as a client does.
struct Joined {
  std::string content;
  std::string reasoning;
  std::map<std::string, std::string> calls;  // index -> name(arguments)
  std::string finish;
  Json usage;
  bool done = false;
};

Joined join(const Reply& reply) {
  Joined joined;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") {
      joined.done = true;
      continue;
    }
    const Json json = *chat::parse_json(event);
    EXPECT_EQ(text_at(json, "object"), "chat.completion.chunk") << event;
    if (const Json* usage = json.find("usage")) joined.usage = *usage;
    const Json choice = at(json, "choices.0");
    if (choice.is_null()) continue;
    const Json delta = at(choice, "delta");
    if (const Json* text = delta.find("content")) joined.content += text->text;
    if (const Json* text = delta.find("reasoning_content")) {
      joined.reasoning += text->text;
      EXPECT_EQ(text_at(delta, "reasoning"), text->text);
    }
    if (const Json* calls = delta.find("tool_calls"))
      for (const Json& call : calls->items)
        joined.calls[text_at(call, "index")] +=
            (call.find("id") != nullptr ? text_at(call, "function.name") + ":" : "") +
            text_at(call, "function.arguments");
    if (const std::string finish = text_at(choice, "finish_reason"); finish != "null")
      joined.finish = finish;
  }
  return joined;
}

TEST(Chat, AnswersAQuestion) {
  const Reply reply = ask("What is 37 + 48?", R"("enable_thinking":false)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(text_at(json, "object"), "chat.completion");
  EXPECT_TRUE(text_at(json, "id").starts_with("chatcmpl-"));
  EXPECT_EQ(text_at(json, "model"), "tiny");
  EXPECT_EQ(text_at(json, "choices.0.message.role"), "assistant");
  EXPECT_EQ(text_at(json, "choices.0.message.content"), "37 + 48 = 85");
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(text_at(json, "choices.0.logprobs"), "null");
  EXPECT_GT(std::stoi(text_at(json, "usage.prompt_tokens")), 5);
  EXPECT_GT(std::stoi(text_at(json, "usage.completion_tokens")), 3);
  EXPECT_EQ(std::stoi(text_at(json, "usage.total_tokens")),
            std::stoi(text_at(json, "usage.prompt_tokens")) +
                std::stoi(text_at(json, "usage.completion_tokens")));
  EXPECT_NE(text_at(json, "usage.prompt_tokens_details.cached_tokens"), "null");
  EXPECT_FALSE(reply.fields.at("x-request-id").empty());
}

TEST(Chat, NamesWhatAnswered) {
  const std::string name = text_at(ask("hi", R"("max_tokens":1)").json(), "system_fingerprint");
  EXPECT_TRUE(name.starts_with("fp_") && name.size() == 19) << name;
  EXPECT_EQ(text_at(ask("ho", R"("max_tokens":2)").json(), "system_fingerprint"), name);
  const Reply stream = ask("hi", R"("max_tokens":1,"stream":true)");
  EXPECT_EQ(text_at(*chat::parse_json(stream.events().front()), "system_fingerprint"), name);
}

TEST(Chat, ThinksUnlessTold) {
  const Reply reply = ask("What is 23 times 7?");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(text_at(json, "choices.0.message.content"), "23 times 7 is 161.");
  EXPECT_FALSE(text_at(json, "choices.0.message.reasoning_content").empty());
  EXPECT_EQ(text_at(json, "choices.0.message.reasoning_content"),
            text_at(json, "choices.0.message.reasoning"));
  EXPECT_GT(std::stoi(text_at(json, "usage.completion_tokens_details.reasoning_tokens")), 0);
  for (const char* off :
       {R"("thinking":{"type":"disabled"})", R"("chat_template_kwargs":{"enable_thinking":false})",
        R"("chat_template_kwargs":{"thinking":false})", R"("reasoning_effort":"none")"}) {
    const Json quiet = ask("What is 23 times 7?", off).json();
    EXPECT_TRUE(at(quiet, "choices.0.message.reasoning_content").is_null()) << off;
    EXPECT_FALSE(text_at(quiet, "choices.0.message.content").empty()) << off;
  }
  const Json hidden = ask("What is 23 times 7?", R"("include_reasoning":false)").json();
  EXPECT_TRUE(at(hidden, "choices.0.message.reasoning_content").is_null());
  EXPECT_EQ(text_at(hidden, "choices.0.message.content"), "23 times 7 is 161.");
  const Json joined = ask("What is 23 times 7?", R"("separate_reasoning":false)").json();
  EXPECT_TRUE(at(joined, "choices.0.message.reasoning_content").is_null());
  EXPECT_EQ(text_at(joined, "choices.0.message.content"),
            text_at(json, "choices.0.message.reasoning_content") + "</think>23 times 7 is 161.");
}

TEST(Chat, SendsReasoningInOneChunkIfStreamReasoningIsFalse) {
  const auto pieces = [](const std::string& more) {
    std::vector<std::string> thoughts;
    const Reply reply = ask("What is 23 times 7?", R"("stream":true)" + more);
    for (const std::string& event : reply.events()) {
      if (event == "[DONE]") continue;
      const std::string text =
          text_at(*chat::parse_json(event), "choices.0.delta.reasoning_content");
      if (!text.empty() && text != "null") thoughts.push_back(text);
    }
    return thoughts;
  };
  const std::vector<std::string> many = pieces("");
  ASSERT_GT(many.size(), 1U);
  std::string all;
  for (const std::string& piece : many) all += piece;
  EXPECT_EQ(pieces(R"(,"stream_reasoning":true)"), many);
  EXPECT_EQ(pieces(R"(,"stream_reasoning":false)"), std::vector<std::string>{all});
  // Also of an answer that is nothing else.
  EXPECT_EQ(pieces(R"(,"stream_reasoning":false,"max_tokens":3)").size(), 1U);
  EXPECT_EQ(ask("hi", R"("stream_reasoning":"no")").status, 400);
}

TEST(Chat, EndsReasoningWhenItsBudgetIsSpent) {
  const auto thoughts = [](const std::string& more) {
    const Json json = ask("What is 23 times 7?", more).json();
    EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "stop") << more;
    return std::stoi(text_at(json, "usage.completion_tokens_details.reasoning_tokens"));
  };
  const int all = thoughts("");
  ASSERT_GT(all, 4);
  // The budget's tokens, and the one that ends them.
  EXPECT_EQ(thoughts(R"("thinking_token_budget":3)"), 4);
  EXPECT_EQ(thoughts(R"("thinking_token_budget":0)"), 1);
  EXPECT_EQ(thoughts(R"("thinking_token_budget":10000)"), all);
  EXPECT_EQ(ask("hi", R"("thinking_token_budget":-1)").status, 400);
}

TEST(Chat, StreamsWhatItWouldAnswerWhole) {
  for (const std::string& more :
       {std::string(), std::string(R"(,"enable_thinking":false)"),
        std::string(R"(,"separate_reasoning":false)"), std::string(R"(,"stream_reasoning":false)"),
        std::string(R"(,"separate_reasoning":false,"tools":)") + kTools,
        std::string(R"(,"tools":)") + kTools,
        std::string(R"(,"enable_thinking":false,"tools":)") + kTools}) {
    const std::string question = "What is the weather in Lisbon?";
    const Reply whole = ask(question, R"("max_tokens":200)" + more);
    const Reply stream =
        ask(question,
            R"("max_tokens":200,"stream":true,"stream_options":{"include_usage":true})" + more);
    ASSERT_EQ(whole.status, 200) << whole.body;
    ASSERT_EQ(stream.status, 200) << stream.body;
    EXPECT_EQ(stream.fields.at("content-type"), "text/event-stream; charset=utf-8");
    Joined joined = join(stream);
    const Json message = at(whole.json(), "choices.0.message");
    EXPECT_TRUE(joined.done);
    EXPECT_EQ(joined.finish, text_at(whole.json(), "choices.0.finish_reason"));
    EXPECT_EQ(joined.content, at(message, "content").text);
    EXPECT_EQ(joined.reasoning, at(message, "reasoning_content").text);
    EXPECT_EQ(text_at(joined.usage, "completion_tokens"),
              text_at(whole.json(), "usage.completion_tokens"));
    const Json calls = at(message, "tool_calls");
    ASSERT_EQ(joined.calls.size(), calls.items.size());
    for (std::size_t i = 0; i < calls.items.size(); ++i)
      EXPECT_EQ(joined.calls[std::to_string(i)], text_at(calls.items[i], "function.name") + ":" +
                                                     text_at(calls.items[i], "function.arguments"));
  }
}

TEST(Chat, CountsReasoningTokensAsTheyCome) {
  const Reply stream = ask(
      "What is 23 times 7?",
      R"("n":2,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  std::vector<int> counts;
  for (const std::string& event : stream.events())
    if (event != "[DONE]")
      counts.push_back(std::stoi(
          text_at(*chat::parse_json(event), "usage.completion_tokens_details.reasoning_tokens")));
  ASSERT_GT(counts.size(), 4U) << stream.body;
  EXPECT_EQ(counts.front(), 0);
  EXPECT_GT(counts.back(), 4);
  EXPECT_TRUE(std::ranges::is_sorted(counts));
  // The last chunk of a choice, before the one of the engine's own usage.
  EXPECT_EQ(counts[counts.size() - 2], counts.back());
}

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
  // Who calls nothing says what he says.
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
      shared_server().port(), kPath,
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
  // It takes a chunk with choices for a token and one without for the usage.
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
  // Which of the two is at fault is told.
  const std::string strict =
      R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",)"
      R"("properties":{"a":{"type":"array","uniqueItems":true}}}}}],"response_format":{"type":"json_object"})";
  const Reply refused = ask("Hello", strict);
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_EQ(text_at(refused.json(), "error.param"), "tools");
  EXPECT_EQ(text_at(refused.json(), "error.code"), "unsupported_schema");
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
    // As /v1/responses has it, without a level between.
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
  // All of them: as without.
  const std::string both = R"([{"type":"function","function":{"name":"web_search"}},)"
                           R"({"type":"function","function":{"name":"get_weather"}}])";
  EXPECT_EQ(text_at(ask(question, allowed("auto", both)).json(),
                    "choices.0.message.tool_calls.0.function.name"),
            "get_weather");
  // None that can be called.
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
  const Reply reply = post(shared_server().port(), kPath, request);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(text_at(reply.json(), "choices.0.message.content"),
            "The weather in Lisbon is sunny with 24 degrees.");
}

TEST(Chat, SpelledControlTokensStayText) {
  // <|user|> as a token would be one id; as text it is several.
  const auto tokens = [](const std::string& text) {
    return std::stoi(text_at(ask(text, R"("max_tokens":1)").json(), "usage.prompt_tokens"));
  };
  EXPECT_GE(tokens("a<|user|>b"), tokens("ab") + 3);
  EXPECT_GE(tokens("a</think>b"), tokens("ab") + 3);
  EXPECT_GE(tokens("a<|endoftext|>b"), tokens("ab") + 3);
}

TEST(Chat, StopsAtAStringAndSaysWhich) {
  const Json json =
      ask("List the days of the week.", R"("enable_thinking":false,"stop":["Thursday","Friday"])")
          .json();
  EXPECT_EQ(text_at(json, "choices.0.message.content"), "Monday, Tuesday, Wednesday, ");
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(text_at(json, "choices.0.stop_reason"), "Thursday");
  const Json kept =
      ask("List the days of the week.",
          R"("enable_thinking":false,"stop":"Tuesday","include_stop_str_in_output":true)")
          .json();
  EXPECT_EQ(text_at(kept, "choices.0.message.content"), "Monday, Tuesday");
}

TEST(Chat, StopStringsDoNotHideTags) {
  // The stop string is a beginning of the tag: the engine holds the tag back for a moment.
  const Json plain = ask("What is 23 times 7?").json();
  const Json stops = ask("What is 23 times 7?", R"("stop":["</think>never","ink>never"])").json();
  EXPECT_EQ(text_at(stops, "choices.0.message.content"),
            text_at(plain, "choices.0.message.content"));
  EXPECT_EQ(text_at(stops, "choices.0.message.reasoning_content"),
            text_at(plain, "choices.0.message.reasoning_content"));
}

TEST(Chat, EndsAtItsLength) {
  const Json json = ask("Tell me a short story about a fox, a forest and a key.",
                        R"("enable_thinking":false,"max_tokens":99,"max_completion_tokens":5)")
                        .json();
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "length");
  EXPECT_EQ(text_at(json, "usage.completion_tokens"), "5");
}

TEST(Chat, GivesLogprobs) {
  const Json json =
      ask("What is 37 + 48?", R"("enable_thinking":false,"logprobs":true,"top_logprobs":3)").json();
  const Json content = at(json, "choices.0.logprobs.content");
  ASSERT_EQ(static_cast<int>(content.items.size()),
            std::stoi(text_at(json, "usage.completion_tokens")));
  std::string text;
  for (const Json& entry : content.items) {
    text += text_at(entry, "token");
    EXPECT_LE(std::stod(text_at(entry, "logprob")), 0.0);
    ASSERT_EQ(at(entry, "top_logprobs").items.size(), 3U);
    EXPECT_EQ(text_at(entry, "top_logprobs.0.token"), text_at(entry, "token"));
    EXPECT_EQ(at(entry, "bytes").items.size(), text_at(entry, "token").size());
  }
  EXPECT_TRUE(text.starts_with("37 + 48 = 85")) << text;
}

TEST(Chat, GivesSeveralAnswersAndTheSameForASeed) {
  const std::string more =
      R"("enable_thinking":false,"n":3,"temperature":2,"seed":7,"max_tokens":24)";
  const Json first = ask("zq", more).json();
  const Json second = ask("zq", more).json();
  ASSERT_EQ(at(first, "choices").items.size(), 3U) << chat::dump_json(first);
  for (const char* index : {"0", "1", "2"})
    EXPECT_EQ(text_at(first, std::string("choices.") + index + ".message.content"),
              text_at(second, std::string("choices.") + index + ".message.content"));
  EXPECT_NE(text_at(first, "choices.0.message.content"),
            text_at(first, "choices.1.message.content"));
  EXPECT_GT(std::stoi(text_at(second, "usage.prompt_tokens_details.cached_tokens")), -1);
}

TEST(Chat, TellsWhatWasCached) {
  const std::string question(400, 'x');
  ask(question, R"("max_tokens":1)");
  const Json json = ask(question, R"("max_tokens":1)").json();
  const int prompt = std::stoi(text_at(json, "usage.prompt_tokens"));
  ASSERT_GT(prompt, 64);
  EXPECT_EQ(std::stoi(text_at(json, "usage.prompt_tokens_details.cached_tokens")),
            (prompt - 1) / 64 * 64);
}

TEST(Chat, GivesTokenIds) {
  const Json json =
      ask("What is 37 + 48?", R"("enable_thinking":false,"return_token_ids":true)").json();
  EXPECT_EQ(static_cast<int>(at(json, "prompt_token_ids").items.size()),
            std::stoi(text_at(json, "usage.prompt_tokens")));
  EXPECT_EQ(static_cast<int>(at(json, "choices.0.token_ids").items.size()),
            std::stoi(text_at(json, "usage.completion_tokens")));
}

TEST(Chat, DeveloperIsSystem) {
  const auto with = [](const std::string& role) {
    return post(shared_server().port(), kPath,
                R"({"model":"tiny","temperature":0,"max_tokens":20,"messages":[{"role":")" + role +
                    R"(","content":"Be brief."},{"role":"user","content":"What is 5 + 6?"}]})");
  };
  const Json system = with("system").json();
  const Json developer = with("developer").json();
  EXPECT_EQ(text_at(system, "usage.prompt_tokens"), text_at(developer, "usage.prompt_tokens"));
  EXPECT_EQ(text_at(system, "choices.0.message.content"),
            text_at(developer, "choices.0.message.content"));
}

TEST(Chat, KeepsReasoningOfEarlierTurnsWhenThereAreTools) {
  const auto prompt_tokens = [](const std::string& more) {
    return std::stoi(text_at(
        post(shared_server().port(), kPath,
             R"({"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"a"},)"
             R"({"role":"assistant","content":"b","reasoning_content":"one two three four five"},)"
             R"({"role":"user","content":"c"}])" +
                 more + "}")
            .json(),
        "usage.prompt_tokens"));
  };
  const std::string tools = std::string(R"(,"tools":)") + kTools;
  EXPECT_GT(prompt_tokens(R"(,"clear_thinking":false)"), prompt_tokens(""));
  EXPECT_EQ(prompt_tokens(R"(,"thinking":{"clear_thinking":false})"),
            prompt_tokens(R"(,"clear_thinking":false)"));
  EXPECT_GT(prompt_tokens(tools), prompt_tokens(tools + R"(,"clear_thinking":true)"));
}

TEST(Chat, ContinuesTheLastMessage) {
  const Json json =
      post(
          shared_server().port(), kPath,
          R"({"model":"tiny","temperature":0,"max_tokens":40,"continue_final_message":true,)"
          R"("enable_thinking":false,"messages":[{"role":"user","content":"List the days of the week."},)"
          R"({"role":"assistant","content":"Monday, Tuesday,"}]})")
          .json();
  EXPECT_TRUE(text_at(json, "choices.0.message.content").starts_with(" Wednesday"))
      << text_at(json, "choices.0.message.content");
}

}  // namespace
}  // namespace koho::server
