// SPDX-License-Identifier: Apache-2.0
// /v1/messages and /v1/responses as coding agents use them, exact replay, /debug/cache:
// the requests of clients.py without the official clients.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

constexpr const char* kMessageTools =
    R"([{"name":"get_weather","description":"Get the weather in a city.","input_schema":)"
    R"({"type":"object","properties":{"city":{"type":"string","description":"The city."}},"required":["city"]}},)"
    R"({"name":"web_search","description":"Search the web.","input_schema":)"
    R"({"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}])";
constexpr const char* kResult = R"({\"temperature\": 24, \"condition\": \"sunny\"})";

Reply ask(const char* path, const std::string& body) {
  return post(shared_server().port(), path, body);
}

std::int64_t number_at(const Json& json, std::string_view path) {
  return std::stoll(text_at(json, path));
}

std::vector<std::string> event_types(const Reply& reply) {
  std::vector<std::string> types;
  for (const std::string& event : reply.events()) {
    const std::string type = text_at(*chat::parse_json(event), "type");
    // Consecutive deltas count as one: their number depends on the tokens.
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  return types;
}

/// A request like Claude Code's: a header that changes every turn, a long system prompt, tools.
std::string agent_body(const std::string& messages, int turn, bool stream) {
  std::string prompt;
  for (int i = 0; i < 10; ++i) prompt += "You help with questions. Answer briefly. Use the tools. ";
  return fmt::format(
      R"({{"model":"claude-sonnet-4-5","max_tokens":96,"temperature":0,"stream":{},)"
      R"("thinking":{{"type":"enabled","budget_tokens":1024}},"metadata":{{"user_id":"u"}},)"
      R"("system":[{{"type":"text","text":"x-anthropic-billing-header: cch={:05x};"}},)"
      R"({{"type":"text","text":"{}","cache_control":{{"type":"ephemeral"}}}}],)"
      R"("tools":{},"messages":[{}]}})",
      stream, turn * 7919, prompt, kMessageTools, messages);
}

TEST(Messages, KeepsAnAgentsSessionInTheCache) {
  std::string messages = R"({"role":"user","content":"What is the weather in Lisbon?"})";
  std::int64_t before = 0;
  int calls = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const Reply reply = ask("/v1/messages?beta=true", agent_body(messages, turn, false));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = reply.json();
    const std::int64_t cached = number_at(json, "usage.cache_read_input_tokens");
    const std::int64_t total = number_at(json, "usage.input_tokens") + cached;
    if (turn > 0) {
      EXPECT_GE(cached, 64 * ((before - 1) / 64)) << "turn " << turn;
    }
    // The next prompt begins with the prompt and the answer without its end token.
    before = total + number_at(json, "usage.output_tokens") - 1;
    const Json& content = *json.find("content");
    messages += R"(,{"role":"assistant","content":)" + chat::dump_json(content) + "}";
    std::string results;
    for (const Json& block : content.items) {
      if (text_at(block, "type") != "tool_use") continue;
      ++calls;
      results += fmt::format(R"({}{{"type":"tool_result","tool_use_id":"{}","content":"{}"}})",
                             results.empty() ? "" : ",", text_at(block, "id"), kResult);
    }
    messages +=
        R"(,{"role":"user","content":)" +
        (results.empty() ? std::string(R"("What is the weather in Rome?")") : "[" + results + "]") +
        "}";
  }
  EXPECT_GT(calls, 0) << "the session had no tool call";
}

TEST(Messages, StreamsTheEventsThatClientsFollow) {
  const Reply reply = ask(
      "/v1/messages",
      R"({"model":"claude-x","max_tokens":96,"temperature":0,"stream":true,"thinking":{"type":"enabled"},)"
      R"("tools":)" +
          std::string(kMessageTools) +
          R"(,"messages":[{"role":"user","content":"What is the weather in Lisbon?"}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.fields.at("content-type").substr(0, 17), "text/event-stream");
  EXPECT_EQ(event_types(reply),
            (std::vector<std::string>{"message_start", "ping", "content_block_start",
                                      "content_block_delta", "content_block_stop",
                                      "content_block_start", "content_block_delta",
                                      "content_block_stop", "message_delta", "message_stop"}));
  std::string input;
  std::string stop;
  for (const std::string& event : reply.events()) {
    const Json json = *chat::parse_json(event);
    if (text_at(json, "delta.type") == "input_json_delta")
      input += text_at(json, "delta.partial_json");
    if (text_at(json, "type") == "message_delta") stop = text_at(json, "delta.stop_reason");
  }
  EXPECT_EQ(text_at(*chat::parse_json(input), "city"), "Lisbon");
  EXPECT_EQ(stop, "tool_use");
}

TEST(Messages, CallsAToolWhenItMust) {
  for (const char* choice :
       {R"({"type":"any"})", R"({"type":"tool","name":"web_search"})",
        R"({"type":"tool","name":"web_search","disable_parallel_tool_use":true})"}) {
    const std::string body =
        R"({"model":"claude-x","max_tokens":256,"temperature":0,"messages":[{"role":"user",)"
        R"("content":"What is 5 + 6?"}],"tool_choice":)" +
        std::string(choice) + R"(,"tools":)" + kMessageTools;
    const Reply reply = ask("/v1/messages", body + "}");
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = reply.json();
    EXPECT_EQ(text_at(json, "stop_reason"), "tool_use") << reply.body;
    const Json call = at(json, "content." + std::to_string(at(json, "content").items.size() - 1));
    EXPECT_EQ(text_at(call, "type"), "tool_use");
    if (std::string_view(choice).find("web_search") != std::string_view::npos) {
      EXPECT_EQ(text_at(call, "name"), "web_search");
      EXPECT_TRUE(at(call, "input.query").is_string()) << reply.body;
    }
    const Reply stream = ask("/v1/messages", body + R"(,"stream":true})");
    EXPECT_EQ(event_types(stream).back(), "message_stop");
    EXPECT_NE(stream.body.find(R"("stop_reason":"tool_use")"), std::string::npos) << stream.body;
  }
}

constexpr const char* kTwoQuestions =
    R"("What is the weather in Lisbon? Also, what is the weather in Paris?")";

TEST(Messages, EndsBehindOneCallWhenTheyMayNotBeParallel) {
  for (const std::size_t expected : {2U, 1U}) {
    const std::string body = fmt::format(
        R"({{"model":"claude-x","max_tokens":200,"temperature":0,"messages":[{{"role":"user","content":{}}}],)"
        R"("tool_choice":{{"type":"auto","disable_parallel_tool_use":{}}},"tools":{})",
        kTwoQuestions, expected == 1, kMessageTools);
    const Reply reply = ask("/v1/messages", body + "}");
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = reply.json();
    EXPECT_EQ(text_at(json, "stop_reason"), "tool_use");
    const auto is_call = [](const Json& block) { return text_at(block, "type") == "tool_use"; };
    const std::vector<Json> blocks = at(json, "content").items;
    EXPECT_EQ(static_cast<std::size_t>(std::ranges::count_if(blocks, is_call)), expected)
        << reply.body;
    const Reply stream = ask("/v1/messages", body + R"(,"stream":true})");
    std::size_t calls = 0;
    for (const std::string& event : stream.events())
      if (text_at(*chat::parse_json(event), "content_block.type") == "tool_use") ++calls;
    EXPECT_EQ(calls, expected) << stream.body;
    EXPECT_NE(stream.body.find(R"("stop_reason":"tool_use")"), std::string::npos) << stream.body;
  }
}

TEST(Messages, ThinksWithinItsBudget) {
  const auto reasoning_of = [](int budget) {
    const Reply reply = ask(
        "/v1/messages",
        fmt::format(
            R"({{"model":"claude-sonnet-4-5","max_tokens":200,"temperature":0,"thinking":{{"type":"enabled","budget_tokens":{}}},)"
            R"("messages":[{{"role":"user","content":"What is 23 times 7?"}}]}})",
            budget));
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(text_at(reply.json(), "content.1.type"), "text") << reply.body;
    return text_at(reply.json(), "content.0.thinking");
  };
  const std::string all = reasoning_of(1024);
  const std::string few = reasoning_of(3);
  EXPECT_LT(few.size(), all.size());
  EXPECT_TRUE(all.starts_with(few)) << few << "\n" << all;
}

TEST(Messages, KeepsToASchema) {
  const std::string format =
      R"({"type":"json_schema","schema":{"type":"object","properties":{"river":{"enum":["Tejo"]},)"
      R"("km":{"const":1007}},"required":["river","km"],"additionalProperties":false}})";
  const auto ask_for = [](const std::string& members) {
    return ask("/v1/messages",
               R"({"model":"claude-x","max_tokens":200,)" + members +
                   R"(,"messages":[{"role":"user","content":"What is 23 times 7?"}]})");
  };
  for (const std::string& members :
       {R"("output_format":)" + format, R"("output_config":{"format":)" + format + "}"}) {
    const Reply reply = ask_for(members);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Result<chat::Json> said = chat::parse_json(text_at(reply.json(), "content.0.text"));
    ASSERT_TRUE(said.ok()) << reply.body;
    EXPECT_EQ(text_at(*said, "river"), "Tejo");
    EXPECT_EQ(text_at(*said, "km"), "1007");
  }
  for (const auto& [members, field] :
       {std::pair{R"("output_format":{"type":"yaml"})", "output_format.type"},
        std::pair{R"("output_format":"json")", "output_format"},
        std::pair{R"("output_config":{"format":{"type":"json_schema"}})",
                  "output_config.format.schema"},
        std::pair{R"("output_config":{"format":{"type":"json_schema","schema":{"type":"no"}}})",
                  "output_config.format"}}) {
    const Reply reply = ask_for(members);
    EXPECT_EQ(reply.status, 400) << members;
    EXPECT_NE(text_at(reply.json(), "error.message").find(field), std::string::npos) << reply.body;
  }
}

TEST(Messages, CallsAToolOrKeepsToASchema) {
  const auto ask_for = [](const std::string& question) {
    return ask("/v1/messages",
               R"({"model":"claude-x","max_tokens":200,"temperature":0,"output_format":{"type":"json_schema",)"
               R"("schema":{"type":"object","properties":{"n":{"const":7}},"required":["n"]}},"tools":)" +
                   std::string(kMessageTools) + R"(,"messages":[{"role":"user","content":")" +
                   question + R"("}]})")
        .json();
  };
  const Json calling = ask_for("What is the weather in Lisbon?");
  EXPECT_EQ(text_at(calling, "content.0.type"), "tool_use") << chat::dump_json(calling);
  EXPECT_EQ(text_at(calling, "stop_reason"), "tool_use");
  const Json told = ask_for("Give me a JSON object with name = Anna, age = 31 and city = Rome.");
  const Result<chat::Json> said = chat::parse_json(text_at(told, "content.0.text"));
  ASSERT_TRUE(said.ok()) << chat::dump_json(told);
  EXPECT_EQ(text_at(*said, "n"), "7");
}

TEST(Messages, CountsTokensAsTheyAreUsed) {
  const std::string body =
      R"({"model":"claude-x","max_tokens":1,"messages":[{"role":"user","content":"What is 2 + 2?"}]})";
  const Json counted = ask("/v1/messages/count_tokens", body).json();
  const Json usage = at(ask("/v1/messages", body).json(), "usage");
  EXPECT_EQ(number_at(counted, "input_tokens"),
            number_at(usage, "input_tokens") + number_at(usage, "cache_read_input_tokens"));
}

TEST(Messages, RefusesInAnthropicsForm) {
  const auto error = [](const std::string& body) {
    const Reply reply = ask("/v1/messages", body);
    return fmt::format("{} {}: {}", reply.status, text_at(reply.json(), "error.type"),
                       text_at(reply.json(), "error.message"));
  };
  const std::string hello = R"("messages":[{"role":"user","content":"Hi"}])";
  EXPECT_EQ(error(R"({"model":"claude-x",)" + hello + "}"),
            "400 invalid_request_error: max_tokens: Field required");
  EXPECT_EQ(error(R"({"model":"gpt","max_tokens":1,)" + hello + "}"),
            "404 not_found_error: model: gpt");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  const std::string refused =
      error(R"({"model":"claude-x","max_tokens":48,"messages":[{"role":"user","content":")" +
            words + "\"}]}");
  EXPECT_TRUE(refused.starts_with("400 invalid_request_error: prompt is too long: ") &&
              refused.ends_with(" tokens > 2047 maximum"))
      << refused;
  const Reply good = ask("/v1/messages", R"({"model":"claude-x","max_tokens":1,)" + hello + "}");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.fields.at("request-id"), good.fields.at("x-request-id"));
  // Errors of HTTP, too.
  const std::uint16_t port = shared_server().port();
  Client large(port);
  large.send(
      "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
  for (const auto& [reply, status, type] :
       {std::tuple{get(port, "/v1/messages"), 405, "invalid_request_error"},
        std::tuple{post(port, "/v1/messages/batches", "{}"), 404, "not_found_error"},
        std::tuple{large.read_reply().value_or(Reply{}), 413, "request_too_large"}}) {
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(text_at(reply.json(), "type"), "error") << reply.body;
    EXPECT_EQ(text_at(reply.json(), "error.type"), type) << reply.body;
    EXPECT_EQ(reply.fields.at("request-id"), reply.fields.at("x-request-id"));
  }
  EXPECT_FALSE(get(port, "/v1/messagesx").fields.contains("request-id"));
}

TEST(Responses, StreamsNumberedEventsAndTakesItsItemsBack) {
  const std::string more =
      R"(,"model":"tiny","temperature":0,"max_output_tokens":96,"tools":[{"type":"function",)"
      R"("name":"get_weather","description":"Get the weather in a city.","parameters":)"
      R"({"type":"object","properties":{"city":{"type":"string","description":"The city."}},"required":["city"]}}]})";
  const std::string question = R"({"role":"user","content":"What is the weather in Lisbon?"})";
  const Reply stream = ask("/v1/responses", R"({"stream":true,"input":[)" + question + "]" + more);
  ASSERT_EQ(stream.status, 200) << stream.body;
  const std::vector<std::string> events = stream.events();
  for (std::size_t i = 0; i < events.size(); ++i)
    EXPECT_EQ(number_at(*chat::parse_json(events[i]), "sequence_number"),
              static_cast<std::int64_t>(i));
  EXPECT_EQ(event_types(stream),
            (std::vector<std::string>{
                "response.created", "response.in_progress", "response.output_item.added",
                "response.content_part.added", "response.reasoning_text.delta",
                "response.reasoning_text.done", "response.content_part.done",
                "response.output_item.done", "response.output_item.added",
                "response.function_call_arguments.delta", "response.function_call_arguments.done",
                "response.output_item.done", "response.completed"}));
  const Json response = at(*chat::parse_json(events.back()), "response");
  EXPECT_EQ(text_at(response, "output.1.name"), "get_weather");
  std::string items = question;
  for (const Json& item : at(response, "output").items) items += "," + chat::dump_json(item);
  items += fmt::format(R"(,{{"type":"function_call_output","call_id":"{}","output":"{}"}})",
                       text_at(response, "output.1.call_id"), kResult);
  const Json answer = ask("/v1/responses", R"({"input":[)" + items + "]" + more).json();
  EXPECT_EQ(text_at(answer, "output.1.content.0.text"),
            "The weather in Lisbon is sunny with 24 degrees.");
  EXPECT_GT(number_at(answer, "usage.input_tokens_details.cached_tokens"), 0);
}

TEST(Responses, CallsAToolWhenItMust) {
  const auto tool = [](const std::string& name, const std::string& key, bool strict) {
    return fmt::format(R"({{"type":"function","name":"{}","strict":{},"parameters":{{)"
                       R"("type":"object","properties":{{"{}":{{"type":"string"}}}},)"
                       R"("required":["{}"],"additionalProperties":false}}}})",
                       name, strict, key, key);
  };
  for (const bool strict : {false, true}) {
    for (const char* choice : {R"("required")", R"({"type":"function","name":"web_search"})"}) {
      const std::string body =
          R"({"model":"tiny","temperature":0,"max_output_tokens":256,"input":"What is 5 + 6?",)"
          R"("tool_choice":)" +
          std::string(choice) + R"(,"tools":[)" + tool("get_weather", "city", strict) + "," +
          tool("web_search", "query", strict) + "]";
      const Reply reply = ask("/v1/responses", body + "}");
      ASSERT_EQ(reply.status, 200) << reply.body;
      const Json output = at(reply.json(), "output");
      const Json& call = output.items.back();
      EXPECT_EQ(text_at(call, "type"), "function_call") << reply.body;
      if (choice[0] == '{') {
        EXPECT_EQ(text_at(call, "name"), "web_search");
        EXPECT_TRUE(at(*chat::parse_json(text_at(call, "arguments")), "query").is_string())
            << reply.body;
      }
      const Reply stream = ask("/v1/responses", body + R"(,"stream":true})");
      EXPECT_EQ(event_types(stream).back(), "response.completed");
      EXPECT_EQ(
          text_at(at(*chat::parse_json(stream.events().back()), "response.output").items.back(),
                  "type"),
          "function_call");
    }
  }
}

TEST(Responses, EndsBehindOneCallWhenTheyMayNotBeParallel) {
  for (const std::size_t expected : {2U, 1U}) {
    const std::string body = fmt::format(
        R"({{"model":"tiny","temperature":0,"max_output_tokens":200,"input":{},"parallel_tool_calls":{},)"
        R"("tools":[{{"type":"function","name":"get_weather","description":"Get the weather in a city.",)"
        R"("parameters":{{"type":"object","properties":{{"city":{{"type":"string","description":"The city."}}}},)"
        R"("required":["city"]}}}}])",
        kTwoQuestions, expected == 2);
    const auto calls = [](const Json& response) {
      std::size_t found = 0;
      for (const Json& item : at(response, "output").items)
        if (text_at(item, "type") == "function_call") ++found;
      return found;
    };
    const Reply reply = ask("/v1/responses", body + "}");
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(calls(reply.json()), expected) << reply.body;
    EXPECT_EQ(text_at(reply.json(), "status"), "completed");
    const Reply stream = ask("/v1/responses", body + R"(,"stream":true})");
    EXPECT_EQ(calls(at(*chat::parse_json(stream.events().back()), "response")), expected);
  }
}

TEST(Responses, KeepsToAStrictTool) {
  // At temperature 2 the model writes anything, but strict arguments follow the schema.
  int calls = 0;
  for (int seed = 1; seed <= 4; ++seed) {
    const Reply reply = ask(
        "/v1/responses",
        R"({"model":"tiny","temperature":2,"seed":)" + std::to_string(seed) +
            R"(,"max_output_tokens":400,"reasoning":{"effort":"none"},"input":"What is the weather in Lisbon?",)"
            R"("tool_choice":"required","parallel_tool_calls":false,"tools":[{"type":"function",)"
            R"("name":"pick","strict":true,"parameters":{"type":"object","properties":{"n":)"
            R"({"type":"integer","minimum":3,"maximum":5}},"required":["n"],"additionalProperties":false}}]})");
    ASSERT_EQ(reply.status, 200) << reply.body;
    for (const Json& item : at(reply.json(), "output").items) {
      if (text_at(item, "type") != "function_call") continue;
      ++calls;
      const Json arguments = *chat::parse_json(text_at(item, "arguments"));
      EXPECT_EQ(arguments.keys, (std::vector<std::string>{"n"}));
      const std::int64_t n = arguments.items.at(0).as_integer().value_or(0);
      EXPECT_TRUE(n >= 3 && n <= 5) << reply.body;
    }
  }
  EXPECT_EQ(calls, 4);
}

TEST(Agents, WithoutASeedTwoAnswersDiffer) {
  // Sampled at temperature 2 from the same prompt. The model knows few stories: one answer in some
  // tens repeats the one before; nine equal answers mean one seed.
  const auto differ = [](const auto& answer) {
    const std::string first = answer();
    for (int i = 0; i < 8; ++i)
      if (answer() != first) return true;
    return false;
  };
  const auto answer = [](const char* path, const char* body, const char* field) {
    const Reply reply = ask(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return chat::dump_json(*reply.json().find(field));
  };
  const char* message = R"({"model":"claude-x","max_tokens":48,"temperature":2,)"
                        R"("messages":[{"role":"user","content":"Tell me a story."}]})";
  EXPECT_TRUE(differ([&] { return answer("/v1/messages", message, "content"); }));
  const char* response =
      R"({"model":"tiny","max_output_tokens":48,"temperature":2,"input":"Tell me a story."})";
  const auto texts = [&] {
    const Reply reply = ask("/v1/responses", response);
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::string all;
    const Json json = reply.json();
    for (const Json& item : json.find("output")->items)
      if (const Json* content = item.find("content")) all += chat::dump_json(*content);
    return all;
  };
  EXPECT_TRUE(differ(texts));
}

TEST(DebugCache, TellsWhereAPromptDiffers) {
  std::string words;
  for (int i = 0; i < 120; ++i) words += "river ";
  std::vector<std::string> ids;
  for (const char* end : {"fox", "owl"})
    ids.push_back(
        text_at(ask("/v1/chat/completions",
                    R"({"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":")" +
                        words + end + "\"}]}")
                    .json(),
                "id"));
  const Json report = get(shared_server().port(), "/debug/cache/" + ids[1]).json();
  EXPECT_GT(number_at(report, "longest_shared_prefix"), 64);
  EXPECT_EQ(number_at(report, "cached_tokens"), number_at(report, "cacheable_tokens"));
  EXPECT_TRUE("chatcmpl-" + text_at(report, "shared_with") == ids[0]);
  EXPECT_TRUE(text_at(report, "first_difference.before.text").ends_with("river"))
      << chat::dump_json(report);
  EXPECT_NE(text_at(report, "first_difference.here.text").find("owl"), std::string::npos)
      << chat::dump_json(report);
  EXPECT_EQ(get(shared_server().port(), "/debug/cache/none").status, 404);
}

}  // namespace
}  // namespace koho::server
