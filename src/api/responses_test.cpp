// SPDX-License-Identifier: Apache-2.0
#include "api/responses.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "api/responses_conversation.h"
#include "chat/template.h"
#include "tests/support/scripted_answer.h"
#include "tests/support/thread_time.h"

namespace koho::api {
namespace {

constexpr std::string_view kTools =
    R"("tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}])";

Model model() {
  static const Tokenizer tokenizer =
      *Tokenizer::load(std::string(KOHO_SOURCE_DIR) + "/models/tiny/tokenizer.json");
  Model model;
  model.tokenizer = &tokenizer;
  model.limits.vocabulary = tokenizer.vocab_size();
  model.names = {"glm"};
  return model;
}

/// A request for "x" with these fields besides.
std::string body(std::string_view fields) {
  std::string json = R"({"model": "glm")";
  if (fields.find("\"input\"") == std::string_view::npos) json += R"(, "input": "x")";
  if (!fields.empty()) json += ", ";
  return json.append(fields) + "}";
}

ApiError read(std::string_view json, GenerationRequest& request) {
  const Result<chat::Json> parsed = chat::parse_json(json);
  EXPECT_TRUE(parsed.ok()) << json;
  ApiError fine;
  fine.status = 200;
  ApiError error = read_response(*parsed, model(), request).value_or(fine);
  if (request.conversation && !request.conversation->tools.empty())
    request.tool_schemas = std::make_shared<chat::ToolSchemas>(request.conversation->tools);
  return error;
}

std::string prompt(std::string_view fields) {
  GenerationRequest request;
  const ApiError error = read(body(fields), request);
  if (error.status != 200) return error.message;
  return chat::render(*request.conversation, chat::TemplateStyle::glm_4_7)->text();
}

std::string refusal(std::string_view fields) {
  GenerationRequest request;
  return read(body(fields), request).message;
}

TEST(Responses, ReadsAStringWithInstructions) {
  EXPECT_EQ(prompt(R"("instructions": "Be brief.", "input": "Hi")"),
            "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|><think>");
  EXPECT_EQ(prompt(R"("reasoning": {"effort": "none"})"),
            "[gMASK]<sop><|user|>x<|assistant|></think>");
}

TEST(Responses, ReadsReasoningCallsAndOutputsAsOneTurn) {
  const std::string encoded = encode_reasoning("Look it up.");
  for (const std::string& reasoning :
       {std::string(R"("content": [{"type": "reasoning_text", "text": "Look it up."}])"),
        std::string(R"("summary": [{"type": "summary_text", "text": "Look it up."}])"),
        R"("summary": [], "encrypted_content": ")" + encoded + "\""}) {
    const std::string text = prompt(
        R"("input": [{"role": "developer", "content": "D"},
                     {"type": "message", "role": "user",
                      "content": [{"type": "input_text", "text": "Weather?"}]},
                     {"type": "reasoning", "id": "rs_1", )" +
        reasoning + R"(},
                     {"type": "message", "role": "assistant", "id": "m",
                      "content": [{"type": "output_text", "text": "Wait.", "annotations": []}]},
                     {"type": "function_call", "call_id": "c", "name": "f",
                      "arguments": "{\"a\": 1}"},
                     {"type": "function_call_output", "call_id": "c", "output": "sunny"}], )" +
        std::string(kTools));
    EXPECT_TRUE(text.ends_with(
        "<|system|>D<|user|>Weather?<|assistant|><think>Look it up.</think>Wait.<tool_call>f"
        "<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><|observation|>"
        "<tool_response>sunny</tool_response><|assistant|><think>"))
        << text;
  }
}

TEST(Responses, EncodesReasoningOfAnyLength) {
  for (const std::string text : {"", "a", "ab", "abc", "abcd", "h\u00e9l\u00e9\n\"x\""})
    EXPECT_EQ(decode_reasoning(encode_reasoning(text)), text);
  EXPECT_EQ(decode_reasoning("gAAAA"), "");
  EXPECT_EQ(decode_reasoning("koho1:*"), "");
  EXPECT_EQ(decode_reasoning("koho1:/w=="), "") << "not UTF-8";
}

TEST(Responses, TakesTheFieldsOfOtherApisUnderTheirNames) {
  GenerationRequest request;
  const std::string fields =
      R"("cache_salt": "tenant", "enable_thinking": false, "priority": 2, "timeout": 0.5, "top_k": 3,
         "stop": ["x"], "structured_outputs": {"choice": ["a"]}, "timings": true)";
  EXPECT_EQ(read(body(fields), request).message, "");
  EXPECT_NE(request.base.salt, CacheSalt{});
  EXPECT_EQ(request.conversation->enable_thinking, false);
  EXPECT_EQ(request.base.priority, 2);
  EXPECT_EQ(request.base.deadline_us, 500'000);
  EXPECT_EQ(request.base.sampling.top_k, 3);
  EXPECT_EQ(request.base.stop_strings, std::vector<std::string>{"x"});
  EXPECT_TRUE(request.constraint.has_value());
  EXPECT_EQ(request.unknown_fields, std::vector<std::string>{"timings"});
}

TEST(Responses, LeavesOutWhatOnlyOpenAisServersDo) {
  GenerationRequest request;
  const ApiError refused = read(
      R"({"model": "glm", "input": [{"role": "user", "content": "x"},
                                  {"type": "web_search_call", "id": "w", "status": "completed"},
                                  {"type": "custom_tool_call", "call_id": "c", "name": "patch",
                                   "input": "*** Begin"},
                                  {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}],
          "tools": [{"type": "web_search", "external_web_access": false},
                    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
                    {"type": "namespace", "name": "mcp", "tools": []}, {"type": "custom", "name": "patch"}]})",
      request);
  EXPECT_EQ(refused.message, "");
  EXPECT_EQ(request.unknown_fields,
            (std::vector<std::string>{"input.web_search_call", "tools.web_search",
                                      "tools.namespace", "tools.custom"}));
  ASSERT_EQ(request.conversation->tools.size(), 1U);
  ASSERT_EQ(request.conversation->messages.size(), 3U);
  EXPECT_EQ(chat::dump_json(request.conversation->messages[1].tool_calls.at(0).arguments),
            R"({"arguments": "*** Begin"})");
  EXPECT_EQ(request.conversation->messages[2].role, "tool");
}

TEST(Responses, NamesWhatItRefuses) {
  EXPECT_EQ(refusal(R"("previous_response_id": "resp_1")"),
            "previous_response_id: not supported: this server stores no responses; send the items "
            "of the conversation as input");
  EXPECT_EQ(refusal(R"("background": true)"), "background: not supported: use \"stream\": true");
  EXPECT_EQ(refusal(R"("include": ["message.output_text.logprobs"])"),
            "include[0]: not supported by /v1/responses: use /v1/chat/completions");
  EXPECT_EQ(refusal(R"("input": [{"type": "item_reference", "id": "m"}])"),
            "input[0].type: \"item_reference\" is not supported: this server stores no responses; "
            "send the items themselves");
  EXPECT_EQ(refusal(R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])"),
            "input[0].content[0].type: \"input_image\" is not supported: this model reads and "
            "writes text only");
  EXPECT_EQ(refusal(R"("input": [])"), "input: at least one item is required");
  EXPECT_EQ(refusal(R"("max_output_tokens": 0)"),
            "max_output_tokens: must be in 1..2147483647, found 0");
  EXPECT_EQ(refusal(R"("tool_choice": "must")"),
            "tool_choice: must be \"auto\", \"none\", \"required\", {\"type\": \"function\", "
            "\"name\": …} "
            "or {\"type\": \"allowed_tools\", …}, found \"must\"");
  EXPECT_EQ(refusal(R"("text": {"format": {"type": "xml"}})"),
            "text.format.type: must be text, json_object or json_schema, found \"xml\"");
  GenerationRequest request;
  EXPECT_EQ(read(R"({"model": "other", "input": "x"})", request).status, 404);
}

TEST(Responses, AnAnswerInManyItemsCostsLittleMoreThanInOne) {
  const auto cost_of = [](std::size_t items) {
    std::string input = R"("input": [)";
    for (std::size_t i = 0; i < items; ++i)
      input +=
          R"({"role": "assistant", "content": ")" + std::string(4'000'000 / items, 'x') + "\"},";
    input += R"({"role": "user", "content": "y"}])";
    const double begin = testing::thread_seconds();
    EXPECT_EQ(refusal(input), "");
    return testing::thread_seconds() - begin;
  };
  EXPECT_LT(testing::cost_of_pieces(cost_of), 20);  // not the square: each copied what was before
}

TEST(Responses, TruncatesNothingWhateverIsAskedFor) {
  for (const char* value : {"null", "\"auto\"", "\"disabled\""})
    EXPECT_EQ(refusal(std::string(R"("truncation": )") + value), "") << value;
  for (const char* value : {"\"middle\"", "7", "true", "{}", "\"\""})
    EXPECT_NE(refusal(std::string(R"("truncation": )") + value).find("truncation: must be"),
              std::string::npos)
        << value;
}

TEST(Responses, ReadsTheFormatOfTheText) {
  GenerationRequest request;
  EXPECT_EQ(read(body(R"("text": {"format": {"type": "json_schema", "name": "n",
                          "schema": {"type": "object"}}})"),
                 request)
                .status,
            200);
  ASSERT_TRUE(request.constraint.has_value());
  EXPECT_EQ(request.constraint->kind, Constraint::Kind::json_schema);
  EXPECT_EQ(request.constraint_field, "text.format");
}

const ScriptedAnswer kAnswer{
    .pieces = {"Think.", "</think>", "One ", "moment.", "<tool_call>f<arg_key>a</arg_key>",
               "<arg_value>1</arg_value></tool_call>"},
    .starts_in_reasoning = true};

TEST(Responses, StreamsNumberedEventsOfEveryItem) {
  GenerationRequest request;
  ASSERT_EQ(read(body(R"("stream": true, )" + std::string(kTools)), request).status, 200);
  const StreamedEvents stream(kAnswer.play(request, *respond_response(request, model())));
  EXPECT_EQ(stream.problem, "");
  std::string lines;
  for (std::size_t i = 0; i < stream.events.size(); ++i) {
    const chat::Json& event = stream.events[i];
    EXPECT_EQ(event.find("sequence_number")->text, std::to_string(i));
    lines += event.find("type")->text;
    for (const char* key :
         {"output_index", "content_index", "item", "part", "delta", "text", "arguments"})
      if (const chat::Json* value = event.find(key)) lines += " " + chat::dump_json(*value);
    lines += "\n";
  }
  EXPECT_EQ(lines,
            R"(response.created
response.in_progress
response.output_item.added 0 {"id": "rs_100", "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
response.content_part.added 0 0 {"type": "reasoning_text", "text": ""}
response.reasoning_text.delta 0 0 "Think."
response.reasoning_text.done 0 0 "Think."
response.content_part.done 0 0 {"type": "reasoning_text", "text": "Think."}
response.output_item.done 0 {"id": "rs_100", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Think."}], "status": "completed"}
response.output_item.added 1 {"id": "msg_101", "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
response.content_part.added 1 0 {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
response.output_text.delta 1 0 "One "
response.output_text.delta 1 0 "moment."
response.output_text.done 1 0 "One moment."
response.content_part.done 1 0 {"type": "output_text", "text": "One moment.", "annotations": [], "logprobs": []}
response.output_item.done 1 {"id": "msg_101", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One moment.", "annotations": [], "logprobs": []}], "status": "completed"}
response.output_item.added 2 {"id": "fc_102", "type": "function_call", "call_id": "call_100", "name": "f", "arguments": "", "status": "in_progress"}
response.function_call_arguments.delta 2 "{\"a\": 1}"
response.function_call_arguments.done 2 "{\"a\": 1}"
response.output_item.done 2 {"id": "fc_102", "type": "function_call", "call_id": "call_100", "name": "f", "arguments": "{\"a\": 1}", "status": "completed"}
response.completed
)");
}

TEST(Responses, EndsAStreamWithTheResponseThatABodyIs) {
  GenerationRequest streamed;
  GenerationRequest whole;
  ASSERT_EQ(read(body(R"("stream": true, )" + std::string(kTools)), streamed).status, 200);
  ASSERT_EQ(read(body(kTools), whole).status, 200);
  const StreamedEvents stream(kAnswer.play(streamed, *respond_response(streamed, model())));
  const Result<chat::Json> answer =
      chat::parse_json(kAnswer.play(whole, *respond_response(whole, model())));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(chat::dump_json(*stream.events.back().find("response")), chat::dump_json(*answer));
  EXPECT_EQ(answer->find("status")->text, "completed");
  EXPECT_EQ(answer->find("output")->items.size(), 3U);
  EXPECT_EQ(chat::dump_json(*answer->find("usage")),
            R"({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, )"
            R"("output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 0}, )"
            R"("total_tokens": 107})");
}

TEST(Responses, SaysThatAnAnswerIsIncompleteOrFailed) {
  GenerationRequest request;
  ASSERT_EQ(read(body(R"("stream": true)"), request).status, 200);
  const ScriptedAnswer cut{.pieces = {"a"}, .finish = Finish::length};
  const StreamedEvents stream(cut.play(request, *respond_response(request, model())));
  const chat::Json& last = stream.events.back();
  EXPECT_EQ(last.find("type")->text, "response.incomplete");
  EXPECT_EQ(last.find("response")->find("incomplete_details")->find("reason")->text,
            "max_output_tokens");

  const std::unique_ptr<Responder> responder = respond_response(request, model());
  std::string out;
  responder->begin({.id = "1", .created = 1, .prompt_tokens = 1}, out);
  ApiError error;
  error.code = "internal_error";
  error.message = "broke";
  out.clear();
  responder->fail(error, out);
  const StreamedEvents failed(out);
  EXPECT_EQ(failed.problem, "");
  const chat::Json& response = *failed.events.back().find("response");
  EXPECT_EQ(response.find("status")->text, "failed");
  EXPECT_EQ(chat::dump_json(*response.find("error")),
            R"({"code": "internal_error", "message": "broke"})");
}

}  // namespace
}  // namespace koho::api
