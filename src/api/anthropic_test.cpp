// SPDX-License-Identifier: Apache-2.0
#include "api/anthropic.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "api/event_writer.h"
#include "tests/support/scripted_answer.h"

namespace koho::api {
namespace {

constexpr std::string_view kWeatherTool =
    R"("tools": [{"name": "get_weather", "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"},
                                                          "days": {"type": "integer"}}}}])";

Model model() {
  static const Tokenizer tokenizer =
      *Tokenizer::load(std::string(KOHO_SOURCE_DIR) + "/models/tiny/tokenizer.json");
  Model model;
  model.tokenizer = &tokenizer;
  model.limits.vocabulary = tokenizer.vocab_size();
  model.names = {"glm"};
  model.limits.scheduler.context_max = 4096;
  model.limits.scheduler.tokens_per_page = 64;
  model.limits.scheduler.pages = 64;
  model.tag_ids[static_cast<std::size_t>(chat::Tag::call_open)] = 7;
  return model;
}

Refusal read_body(const chat::Json& body, bool count_only, GenerationRequest& request) {
  return count_only ? read_message_count(body, model(), request)
                    : read_messages(body, model(), request);
}

GenerationRequest read(const std::string& fields, bool count_only = false) {
  const Result<chat::Json> body = chat::parse_json(
      R"({"model": "claude-opus-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "x"}])" +
      fields + "}");
  EXPECT_TRUE(body.ok());
  GenerationRequest request;
  const Refusal refused = read_body(*body, count_only, request);
  EXPECT_FALSE(refused.has_value()) << refused->message;
  if (request.conversation && !request.conversation->tools.empty())
    request.tool_schemas = std::make_shared<chat::ToolSchemas>(request.conversation->tools);
  return request;
}

ApiError make_api_error(int status, std::string_view message, std::string_view code = {}) {
  ApiError error;
  error.status = status;
  error.code = code;
  error.message = message;
  return error;
}

ApiError refusal(const std::string& json, bool count_only = false) {
  const Result<chat::Json> body = chat::parse_json(json);
  EXPECT_TRUE(body.ok()) << json;
  GenerationRequest request;
  return read_body(*body, count_only, request).value_or(make_api_error(200, ""));
}

/// The stream's events, one a line: type, and what it carries.
std::string outline(const StreamedEvents& stream) {
  std::string lines = stream.problem;
  for (const chat::Json& event : stream.events) {
    lines += event.find("type")->text;
    for (const char* key : {"index", "content_block", "delta", "usage", "message", "error"})
      if (const chat::Json* value = event.find(key)) lines += " " + chat::dump_json(*value);
    lines += "\n";
  }
  return lines;
}

TEST(Anthropic, AStrictToolIsStrict) {
  const std::string tool = R"(, "tools": [{"name": "f", "strict": true, "input_schema":
      {"type": "object", "properties": {"n": {"type": "integer"}}}}])";
  const GenerationRequest free = read(tool);
  ASSERT_TRUE(free.constraint);
  EXPECT_EQ(free.constraint->calls, Constraint::Calls::when_called);
  EXPECT_TRUE(free.constraint->tools[0].strict);
  const GenerationRequest forced = read(tool + R"(, "tool_choice": {"type": "any"})");
  ASSERT_TRUE(forced.constraint);
  EXPECT_TRUE(forced.constraint->tools[0].strict);
}

TEST(Anthropic, AResponseFormatWithToolsIsAUnion) {
  const std::string format =
      R"(, "output_format": {"type": "json_schema", "schema": {"type": "object"}})";
  const std::string tools = ", " + std::string(kWeatherTool);
  const GenerationRequest both = read(format + tools);
  ASSERT_TRUE(both.constraint);
  EXPECT_EQ(both.constraint_field, "output_format");
  ASSERT_EQ(both.constraint->alternatives.size(), 2U);
  EXPECT_EQ(both.constraint->alternatives[0].kind, Constraint::Kind::json_schema);
  EXPECT_EQ(both.constraint->alternatives[1].calls, Constraint::Calls::instead_of_text);
  EXPECT_FALSE(both.constraint->alternatives[1].tools[0].strict);
  // No call can escape into the reasoning.
  EXPECT_EQ(both.base.reasoning_banned, 7);
  const GenerationRequest form = read(format + tools + R"(, "tool_choice": {"type": "none"})");
  EXPECT_EQ(form.constraint->kind, Constraint::Kind::json_schema);
  EXPECT_EQ(form.base.reasoning_banned, -1);
  // The bias on <tool_call> also prevents calls within the reasoning.
  ASSERT_EQ(form.base.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(form.base.sampling.logit_bias[0], (std::pair<std::int32_t, float>{7, -100.0F}));
  EXPECT_TRUE(both.base.sampling.logit_bias.empty());
  EXPECT_EQ(read(tools + R"(, "tool_choice": {"type": "any"})").base.reasoning_banned, 7);
  EXPECT_EQ(read(tools).base.reasoning_banned, -1);
}

TEST(Anthropic, ReadsEveryField) {
  const GenerationRequest request = read(
      R"(, "stream": true, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "thinking":
         {"type": "enabled", "budget_tokens": 2048}, "stop_sequences": ["END"], "metadata":
         {"user_id": "u"}, "tool_choice": {"type": "tool", "name": "get_weather",
         "disable_parallel_tool_use": true}, "brand_new": 1, )" +
      std::string(kWeatherTool));
  EXPECT_EQ(request.model, "claude-opus-4-5");
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.tokens_max, 50);
  EXPECT_EQ(request.base.sampling.temperature, 0.5);
  EXPECT_EQ(request.base.sampling.top_p, 0.9);
  EXPECT_EQ(request.base.sampling.top_k, 40);
  EXPECT_EQ(request.base.stop_strings, std::vector<std::string>{"END"});
  EXPECT_EQ(request.conversation->enable_thinking, true);
  EXPECT_EQ(request.conversation->clear_thinking, false) << "tools keep the thinking";
  EXPECT_EQ(request.tool_choice.kind, ToolChoice::Kind::named);
  EXPECT_EQ(request.tool_choice.name, "get_weather");
  EXPECT_FALSE(request.tool_choice.parallel);
  EXPECT_EQ(request.unknown_fields, std::vector<std::string>{"brand_new"});
}

TEST(Anthropic, ThinksOnlyWhenAsked) {
  EXPECT_EQ(read("").conversation->enable_thinking, false);
  EXPECT_EQ(read(R"(, "thinking": {"type": "disabled"})").conversation->enable_thinking, false);
  EXPECT_EQ(read(R"(, "thinking": {"type": "adaptive"})").conversation->enable_thinking, true);
}

TEST(Anthropic, NamesWhatItRefuses) {
  EXPECT_EQ(refusal(R"({"model": 7, "messages": []})").message.substr(0, 6), "model:");
  EXPECT_EQ(refusal(R"({"messages": []})").message, "max_tokens: Field required")
      << "a missing model is the served one";
  EXPECT_EQ(refusal(R"({"model": "claude-x", "messages": []})").message,
            "max_tokens: Field required");
  EXPECT_EQ(refusal(R"({"model": "claude-x", "max_tokens": 0, "messages": []})").message,
            "max_tokens: must be in 1..2147483647, found 0");
  const ApiError unknown = refusal(
      R"({"model": "gpt-4", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(unknown.status, 404);
  std::string body;
  append_error(body, ErrorStyle::anthropic, unknown);
  EXPECT_EQ(body,
            R"({"type":"error","error":{"type":"not_found_error","message":"model: gpt-4"}})");
  EXPECT_EQ(
      refusal(R"({"model": "claude-x", "messages": [{"role": "user", "content": "x"}]})", true)
          .status,
      200)
      << "count_tokens needs no max_tokens";
  for (const auto& [field, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("temperature": 3)", "temperature: must be in [0, 2], found 3"},
           {R"("top_p": 0)", "top_p: must be above 0"},
           {R"("top_k": "x")", "top_k: expected an integer, found a string"},
           {R"("stop_sequences": [""])", "stop_sequences.0: must not be empty"},
           {R"("stop_sequences": "x")",
            "stop_sequences: expected an array of strings, found a string"},
           {R"("thinking": {"type": "deep"})",
            "thinking.type: must be enabled, adaptive or disabled, found \"deep\""},
           {R"("thinking": {"type": "enabled", "budget_tokens": 0})",
            "thinking.budget_tokens: must be in 1..2147483647, found 0"},
           {R"("tool_choice": {"type": "all"})",
            "tool_choice.type: must be auto, any, tool or none, found \"all\""},
           {R"("tool_choice": {"type": "tool"})", "tool_choice.name: Field required"},
           {R"("stream": "yes")", "stream: expected true or false, found a string"}}) {
    const ApiError error = refusal(R"({"model": "claude-x", "max_tokens": 5, "messages":
                                       [{"role": "user", "content": "x"}], )" +
                                   field + "}");
    EXPECT_EQ(error.status, 400) << field;
    EXPECT_EQ(error.message, message);
  }
}

TEST(Anthropic, TakesTheFieldsOfOtherApisUnderTheirNames) {
  const GenerationRequest request = read(
      R"(, "cache_salt": "tenant", "seed": 7, "min_p": 0.5, "priority": 3, "timeout": 2,
         "stop_token_ids": [9], "enable_thinking": true, "n": 2, "strange": 1, "top_k": 5)");
  EXPECT_NE(request.base.salt, CacheSalt{});
  EXPECT_EQ(request.base.sampling.seed, 7);
  EXPECT_EQ(request.base.sampling.min_p, 0.5);
  EXPECT_EQ(request.base.sampling.top_k, 5);
  EXPECT_EQ(request.base.priority, 3);
  EXPECT_EQ(request.base.deadline_us, 2'000'000);
  EXPECT_EQ(request.base.stop_tokens, std::vector<Token>{9});
  EXPECT_EQ(request.conversation->enable_thinking, true);
  EXPECT_EQ(request.base.choices, 1);
  EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"n", "strange"}));
  EXPECT_EQ(refusal(R"({"model": "claude-x", "max_tokens": 5, "cache_salt": 7,
                        "messages": [{"role": "user", "content": "x"}]})")
                .param,
            "cache_salt");
}

TEST(Anthropic, RefusesUnknownFieldsWhereTheServerIsStrict) {
  Model strict = model();
  strict.strict_fields = true;
  GenerationRequest request;
  const Result<chat::Json> body = chat::parse_json(
      R"({"model": "claude-x", "max_tokens": 1, "new": 1,
          "messages": [{"role": "user", "content": "x"}]})");
  const Refusal refused = read_messages(*body, strict, request);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->message, "new: unknown field");
}

TEST(Anthropic, TellsALongPromptInTheWordsThatClientsKnow) {
  GenerationRequest request = read("");
  request.prompt_tokens = 5000;
  const ApiError error = make_api_error(400, "other words", "context_length_exceeded");
  EXPECT_EQ(reword_for_anthropic(error, request, model()).message,
            "prompt is too long: 5000 tokens > 4095 maximum");
  request.prompt_tokens = 4090;
  EXPECT_EQ(reword_for_anthropic(error, request, model()).message,
            "input length and `max_tokens` exceed context limit: 4090 + 50 > 4096, decrease input "
            "length or `max_tokens` and try again");
  request.tokens_max = 5000;
  EXPECT_EQ(
      reword_for_anthropic(error, request, model()).message,
      "input length and `max_tokens` exceed context limit: 4090 + 5000 > 4096, decrease input "
      "length or `max_tokens` and try again");
  EXPECT_EQ(reword_for_anthropic(make_api_error(400, "as it is"), request, model()).message,
            "as it is");
}

TEST(Anthropic, StreamsThinkingTextAndCalls) {
  const GenerationRequest request =
      read(R"(, "stream": true, "thinking": {"type": "enabled", "budget_tokens": 9}, )" +
           std::string(kWeatherTool));
  const ScriptedAnswer answer{
      .pieces = {"Look",         " it up.",     "</think>",     "One moment.",
                 "<tool_call>",  "get_weather", "<arg_key>",    "city",
                 "</arg_key>",   "<arg_value>", "Ro",           "me\n",
                 "</arg_value>", "<arg_key>",   "days",         "</arg_key>",
                 "<arg_value>",  "3",           "</arg_value>", "</tool_call>"},
      .starts_in_reasoning = true};
  const std::unique_ptr<Responder> responder = respond_messages(request, model());
  EXPECT_EQ(
      outline(StreamedEvents(answer.play(request, *responder))),
      R"(message_start {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-5", "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}}
ping
content_block_start 0 {"type": "thinking", "thinking": "", "signature": ""}
content_block_delta 0 {"type": "thinking_delta", "thinking": "Look"}
content_block_delta 0 {"type": "thinking_delta", "thinking": " it up."}
content_block_delta 0 {"type": "signature_delta", "signature": "koho-1"}
content_block_stop 0
content_block_start 1 {"type": "text", "text": ""}
content_block_delta 1 {"type": "text_delta", "text": "One moment."}
content_block_stop 1
content_block_start 2 {"type": "tool_use", "id": "toolu_100", "name": "get_weather", "input": {}}
content_block_delta 2 {"type": "input_json_delta", "partial_json": "{\"city\": \""}
content_block_delta 2 {"type": "input_json_delta", "partial_json": "Ro"}
content_block_delta 2 {"type": "input_json_delta", "partial_json": "me\\n"}
content_block_delta 2 {"type": "input_json_delta", "partial_json": "\""}
content_block_delta 2 {"type": "input_json_delta", "partial_json": ", \"days\": "}
content_block_delta 2 {"type": "input_json_delta", "partial_json": "3}"}
content_block_stop 2
message_delta {"stop_reason": "tool_use", "stop_sequence": null} {"input_tokens": 36, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64, "output_tokens": 7}
message_stop
)");
}

TEST(Anthropic, AnswersWholeWithTheSameBlocks) {
  const GenerationRequest request = read(
      R"(, "thinking": {"type": "enabled", "budget_tokens": 9}, )" + std::string(kWeatherTool));
  const ScriptedAnswer answer{
      .pieces = {"Look it up.</think>One \"moment\".<tool_call>get_weather<arg_key>city</arg_key>"
                 "<arg_value>Rome</arg_value></tool_call><tool_call>get_weather</tool_call>"},
      .starts_in_reasoning = true};
  EXPECT_EQ(
      answer.play(request, *respond_messages(request, model())),
      R"({"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-4-5","content":[)"
      R"({"type":"thinking","thinking":"Look it up.","signature":"koho-1"},)"
      R"({"type":"text","text":"One \"moment\"."},)"
      R"({"type":"tool_use","id":"toolu_100","name":"get_weather","input":{"city": "Rome"}},)"
      R"({"type":"tool_use","id":"toolu_101","name":"get_weather","input":{}}],)"
      R"("stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":36,)"
      R"("cache_creation_input_tokens":0,"cache_read_input_tokens":64,"output_tokens":7}})");
}

TEST(Anthropic, OmitsThinkingThatIsNotToBeDisplayed) {
  const auto blocks = [](const std::string& fields) {
    const GenerationRequest request =
        read(R"(, "thinking": {"type": "adaptive", "display": "omitted"})" + fields);
    const ScriptedAnswer answer{.pieces = {"Look it up.</think>Rome."},
                                .starts_in_reasoning = true};
    const std::string text = answer.play(request, *respond_messages(request, model()));
    EXPECT_EQ(text.find("Look"), text.npos) << text;
    return text;
  };
  EXPECT_NE(blocks("").find(R"({"type":"thinking","thinking":"","signature":"koho-1"},)"
                            R"({"type":"text","text":"Rome."})"),
            std::string::npos);
  EXPECT_NE(blocks(R"(, "stream": true)").find(R"("signature_delta","signature":"koho-1")"),
            std::string::npos);
}

TEST(Anthropic, SaysWhyAnAnswerEnded) {
  const GenerationRequest request = read("");
  const auto body = [&request](const ScriptedAnswer& answer) {
    return answer.play(request, *respond_messages(request, model()));
  };
  EXPECT_NE(body({.pieces = {"done"}}).find(R"("stop_reason":"end_turn","stop_sequence":null)"),
            std::string::npos);
  EXPECT_NE(body({.pieces = {"cut"}, .finish = Finish::length})
                .find(R"("stop_reason":"max_tokens","stop_sequence":null)"),
            std::string::npos);
  EXPECT_NE(body({.pieces = {"a"}, .stop_string = "END"})
                .find(R"("stop_reason":"stop_sequence","stop_sequence":"END")"),
            std::string::npos);
}

TEST(Anthropic, GivesAtLeastOneBlock) {
  const GenerationRequest request = read("");
  const std::string body = ScriptedAnswer{}.play(request, *respond_messages(request, model()));
  EXPECT_NE(body.find(R"("content":[{"type":"text","text":""}])"), std::string::npos) << body;
}

TEST(Anthropic, ClosesACallThatWasCutOff) {
  EXPECT_EQ(complete_arguments(R"({"city": "Ro)"), R"({"city": "Ro"})");
  EXPECT_EQ(complete_arguments(R"({"city": "Rome")"), R"({"city": "Rome"})");
  EXPECT_EQ(complete_arguments(R"({"city": "Rome"})"), R"({"city": "Rome"})");
  EXPECT_EQ(complete_arguments(R"({"x": 1e999, "y": 0.1e-999)"), R"({"x": 1e999, "y": 0.1e-999})");
  EXPECT_EQ(complete_arguments("{"), "{}");
  EXPECT_EQ(complete_arguments(""), "{}");
  EXPECT_EQ(complete_arguments(R"({"days": )"), "{}");

  const GenerationRequest request = read(R"(, "stream": true, )" + std::string(kWeatherTool));
  const ScriptedAnswer answer{
      .pieces = {"<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro"},
      .finish = Finish::length};
  const std::string lines =
      outline(StreamedEvents(answer.play(request, *respond_messages(request, model()))));
  EXPECT_NE(lines.find("content_block_stop 0\nmessage_delta {\"stop_reason\": \"max_tokens\""),
            std::string::npos)
      << lines;
}

TEST(Anthropic, EndsABrokenStreamWithAnErrorEvent) {
  const GenerationRequest request = read(R"(, "stream": true)");
  const std::unique_ptr<Responder> responder = respond_messages(request, model());
  std::string out;
  responder->fail(make_api_error(503, "draining"), out);
  responder->ping(out);
  EXPECT_EQ(out,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
            "\"message\":\"draining\"}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n");
}

}  // namespace
}  // namespace koho::api
