// SPDX-License-Identifier: Apache-2.0
// What a client gets wrong is a 4xx that names the field and says what is meant: a table of cases
// over all generating APIs.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bad_input.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

const Tokenizer& tokenizer() {
  return *shared_server().serving().model.tokenizer;
}

std::string id_of(std::string_view text) {
  const std::vector<Token> ids = *tokenizer().encode(text);
  EXPECT_EQ(ids.size(), 1U) << text;
  return std::to_string(ids.front());
}

/// A letter whose double is two tokens of it.
std::string doubled_letter() {
  for (const char c : std::string("qxzjkvwQXZJKVW")) {
    const std::string letter(1, c);
    const std::vector<Token> once = *tokenizer().encode(letter);
    if (once.size() == 1 &&
        *tokenizer().encode(letter + letter) == std::vector<Token>{once.front(), once.front()})
      return letter;
  }
  ADD_FAILURE() << "no letter is two tokens when doubled";
  return "q";
}

TEST(ClientErrors, AllowedTokensThatLeaveNothingAre400) {
  const std::int32_t padding = tokenizer().vocab_size();
  ASSERT_LT(padding, 4096) << "the embedded model has padding rows";
  const std::string first = std::to_string(padding);
  refuse_both("\"allowed_token_ids\":[" + first + "]", "allowed_token_ids");
  refuse_both("\"allowed_token_ids\":[" + first + ",4095]", "allowed_token_ids");
  const std::string word = id_of("a");
  accept_both("\"allowed_token_ids\":[" + first + "," + word + "]");
  refuse_both("\"allowed_token_ids\":[" + word + R"(],"bad_words":["a"])", "bad_words");
  refuse_both(
      "\"allowed_token_ids\":[" + word + "],\"stop_token_ids\":[" + word + R"(],"min_tokens":1)",
      "min_tokens");
  // With a bias, too: a bias of -100 is a low logit, not an exclusion.
  accept_both("\"allowed_token_ids\":[" + word + "],\"logit_bias\":{\"" + word + "\":-100}");
}

TEST(ClientErrors, ListsOfTokensBesideToolCallsOfAGrammarNameTheirField) {
  const auto tools = [](const std::string& more) {
    return R"("tools":[{"type":"function","function":{"name":"f",)" + more +
           R"("parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],)";
  };
  const std::string strict = tools(R"("strict":true,)");
  for (const std::string& tool : {strict, tools("") + R"("tool_choice":"required",)",
                                  tools("") + R"("parallel_tool_calls":false,)"})
    for (const auto& [field, value] :
         {std::pair{"bad_words", R"(["a"])"}, std::pair{"allowed_token_ids", "[5,6]"}})
      refuse(Api::chat, tool + '"' + field + "\":" + value, 400, field);
  const std::string free = body_with(Api::chat, tools("") + R"("bad_words":["a"])");
  EXPECT_EQ(post(shared_server().port(), path_of(Api::chat), free).status, 200);
}

TEST(ClientErrors, AStopTokenThatTheGrammarNeedsIs400) {
  const std::string stop =
      "\"thinking\":{\"type\":\"disabled\"},\"stop_token_ids\":[" + id_of("a") + "]";
  refuse_both(R"("structured_outputs":{"choice":["a"]},)" + stop, "stop_token_ids");
  refuse_both(R"("structured_outputs":{"regex":"ba"},)" + stop, "stop_token_ids");
  accept_both(R"("structured_outputs":{"choice":["b"]},)" + stop);
}

TEST(ClientErrors, ListsThatLeaveNothingLaterAre400) {
  const std::string letter = doubled_letter();
  const std::string lists = "\"allowed_token_ids\":[" + id_of(letter) + "],\"bad_words\":[\"" +
                            letter + letter + "\"],\"thinking\":{\"type\":\"disabled\"}";
  for (const Api api : kBoth) {
    // One token is possible, a second one is not.
    EXPECT_EQ(
        post(shared_server().port(), path_of(api), body_with(api, lists + ",\"max_tokens\":1"))
            .status,
        200);
    refuse(api, lists + ",\"max_tokens\":2", 400, "bad_words");
    const Reply stream = post(shared_server().port(), path_of(api),
                              body_with(api, lists + ",\"max_tokens\":2,\"stream\":true"));
    if (stream.status == 200) {
      const std::vector<std::string> events = stream.events();
      ASSERT_GE(events.size(), 2U);
      const Json error = *chat::parse_json(events[events.size() - 2]);
      EXPECT_EQ(text_at(error, "error.type"), "invalid_request_error");
      EXPECT_EQ(text_at(error, "error.param"), "bad_words");
    } else {
      expect_error(stream, 400, "bad_words", "", "stream");
    }
    expect_alive(api);
  }
}

TEST(ClientErrors, AWrongKeyIsCalledWrong) {
  TinyServer server([](ServerSettings& settings) { settings.api_keys = {"right"}; });
  const auto message = [&](const std::string& field) {
    const Reply reply = get(server.port(), "/v1/models", field);
    EXPECT_EQ(reply.status, 401);
    return text_at(reply.json(), "error.message");
  };
  EXPECT_NE(message("").find("no API key was sent"), std::string::npos);
  EXPECT_NE(message("Authorization: Bearer x\r\n").find("is wrong"), std::string::npos);
  EXPECT_NE(message("x-api-key: x\r\n").find("x-api-key is wrong"), std::string::npos);
  EXPECT_NE(message("Authorization: Basic x\r\n").find("must be Bearer KEY"), std::string::npos);
}

/// A body to a path, and what the answer says.
struct Case {
  const char* name;
  const char* path;
  std::string body;
  int status;
  const char* param;    // of errors in OpenAI's form
  const char* message;  // a part of it
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kMessages = "/v1/messages";
constexpr const char* kResponses = "/v1/responses";

std::string repeated(std::string_view unit, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += unit;
  return text;
}

std::string chat_with(const std::string& members) {
  return body_with(Api::chat, members);
}

std::string responses_with(const std::string& members) {
  return R"({"model":"tiny","input":"hi","max_output_tokens":2,)" + members + "}";
}

std::string messages_with(const std::string& members) {
  return R"({"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"hi"}],)" +
         members + "}";
}

std::string schema_with(const std::string& schema) {
  return chat_with(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" + schema +
      "}}");
}

std::vector<Case> cases() {
  std::vector<Case> all{
      {"choice_empty", kChat, chat_with(R"("structured_outputs":{"choice":[]})"), 400,
       "structured_outputs.choice", "at least one string"},
      {"guided_choice_empty", kChat, chat_with(R"("guided_choice":[])"), 400, "guided_choice",
       "at least one string"},
      {"lists_of_many_prompts", "/v1/completions",
       R"({"model":"tiny","max_tokens":1,"prompt":[[5])" + repeated(",[5]", 1023) +
           R"(],"bad_words":["x)" + repeated(R"(","zyxzyxzyxzyxzyxzyxzyxzyxzyxzyx)", 255) + "\"]}",
       400, "bad_words", "for each of 1024 prompts"},
      {"prompts_that_choices_repeat", "/v1/completions",
       R"({"model":"tiny","max_tokens":1,"n":80,"echo":true,"prompt":["a)" +
           repeated("\",\"" + repeated("a b ", 250), 1023) + "\"]}",
       400, "echo", "80 choices would repeat"},
      // 26 bytes a token.
      {"ids_that_choices_repeat", "/v1/completions",
       R"({"model":"tiny","max_tokens":1,"n":80,"echo":true,"prompt":[[4016)" +
           repeated("],[4016" + repeated(",4016", 40), 1023) + "]]}",
       400, "echo", "80 choices would repeat"},
      {"minimum_beyond_64_bits", kChat, schema_with(R"({"type":"integer","minimum":1e30})"), 400,
       "response_format", "minimum"},
      {"minimum_below_64_bits", kChat, schema_with(R"({"type":"integer","minimum":-1e30})"), 400,
       "response_format", "minimum"},
      {"maximum_beyond_64_bits", kChat,
       schema_with(R"({"type":"integer","maximum":99999999999999999999})"), 400, "response_format",
       "maximum"},
      {"exclusive_minimum_huge", kChat,
       schema_with(R"({"type":"integer","exclusiveMinimum":9223372036854775807})"), 400,
       "response_format", "exclusiveMinimum"},
      {"refusal_part_of_a_user", kChat,
       chat_with(R"("messages":[{"role":"user","content":[{"type":"refusal","refusal":"no"}]}])"),
       400, "messages[0].content[0]", "refusal"},
      {"refusal_part_without_text", kChat,
       chat_with(R"("messages":[{"role":"user","content":"a"},)"
                 R"({"role":"assistant","content":[{"type":"refusal"}]}])"),
       400, "messages[1].content[0]", "refusal"},
      {"responses_mcp_servers", kResponses, responses_with(R"("mcp_servers":[{"url":"x"}])"), 400,
       "mcp_servers", "calls no other server"},
      {"messages_mcp_servers", kMessages, messages_with(R"("mcp_servers":[{"url":"x"}])"), 400, "",
       "calls no other server"},
      {"messages_mcp_servers_empty", kMessages, messages_with(R"("mcp_servers":[])"), 200, "", ""},
      {"messages_web_search", kMessages,
       messages_with(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"), 400, "",
       "only Anthropic's own models"},
      {"responses_web_search_without_access", kResponses,
       responses_with(R"("tools":[{"type":"web_search","external_web_access":false}])"), 200, "",
       ""},
  };
  for (const char* type :
       {"web_search", "web_search_preview_2025_03_11", "file_search", "code_interpreter",
        "image_generation", "mcp", "local_shell", "shell", "computer_use_preview", "apply_patch"})
    all.push_back({type, kResponses,
                   responses_with(R"("tools":[{"type":")" + std::string(type) + R"("}])"), 400,
                   "tools[0].type", "only OpenAI's servers and models"});
  return all;
}

class ClientErrorTable : public testing::TestWithParam<Case> {};

TEST_P(ClientErrorTable, NamesTheFieldAndTheReason) {
  const Case& one = GetParam();
  const Reply reply = post(shared_server().port(), one.path, one.body);
  ASSERT_EQ(reply.status, one.status) << reply.body;
  if (one.status >= 400) {
    const std::string message = text_at(reply.json(), "error.message");
    EXPECT_NE(message.find(one.message), std::string::npos) << message;
    if (*one.param != '\0') {
      EXPECT_EQ(text_at(reply.json(), "error.param"), one.param) << reply.body;
    }
  }
  expect_alive(Api::chat);
}

INSTANTIATE_TEST_SUITE_P(Fields,
                         ClientErrorTable,
                         testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& one) { return one.param.name; });

/// A megabyte of a client's text came back in the message.
TEST(ClientErrors, TellTheBeginningOfALongText) {
  const std::string text(100'000, 'x');
  const std::string one = R"("messages":[{"role":"user","content":"1"}])";
  const std::string max = R"("max_tokens":1,)";
  for (const auto& [path, members] : std::initializer_list<std::pair<std::string, std::string>>{
           {"/v1/chat/completions", R"("messages":[{"role":")" + text + R"(","content":"1"}])"},
           {"/v1/chat/completions",
            R"("messages":[{"role":"user","content":[{"type":")" + text + R"("}]}])"},
           {"/v1/messages", max + R"("messages":[{"role":")" + text + R"(","content":"1"}])"},
           {"/v1/messages",
            max + R"("messages":[{"role":"user","content":[{"type":")" + text + R"("}]}])"},
           {"/v1/messages", max + R"("thinking":{"type":")" + text + "\"}," + one},
           {"/v1/messages", max + R"("tool_choice":{"type":")" + text + "\"}," + one},
           {"/v1/responses", R"("input":[{"role":")" + text + R"(","content":"1"}])"},
           {"/v1/responses", R"("input":[{"type":")" + text + "\"}]"},
           {"/v1/responses", R"("input":"1","text":{"format":{"type":")" + text + "\"}}"},
           {"/v1/responses", R"("input":"1","reasoning":{"effort":")" + text + "\"}"}}) {
    const Reply reply = post(shared_server().port(), path, R"({"model":"tiny",)" + members + "}");
    EXPECT_EQ(reply.status, 400) << path << members.substr(0, 80) << reply.body.substr(0, 300);
    EXPECT_LT(reply.body.size(), 1000U) << path << members.substr(0, 80);
  }
  const Reply reply = post(shared_server().port(), "/v1/messages",
                           R"({"model":")" + text + "\"," + max + one + "}");
  EXPECT_EQ(reply.status, 404);
  EXPECT_LT(reply.body.size(), 1000U);
}

TEST(ClientErrors, ReplayedRefusalsAreTexts) {
  const auto prompt_of = [](const std::string& message) {
    const Reply reply = post(shared_server().port(), "/v1/chat/completions/render",
                             chat_with(R"("messages":[{"role":"user","content":"a"},)" + message +
                                       R"(,{"role":"user","content":"b"}])"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return text_at(reply.json(), "prompt");
  };
  const std::string told = prompt_of(R"({"role":"assistant","content":"I will not."})");
  EXPECT_NE(told.find("I will not."), std::string::npos);
  EXPECT_EQ(prompt_of(R"({"role":"assistant","content":[{"type":"refusal",)"
                      R"("refusal":"I will not."}]})"),
            told);
  EXPECT_EQ(prompt_of(R"({"role":"assistant","content":null,"refusal":"I will not."})"), told);
  EXPECT_EQ(prompt_of(R"({"role":"assistant","refusal":"I will not."})"), told);
  EXPECT_EQ(prompt_of(R"({"role":"assistant","content":"I will not.","refusal":null})"), told);
}

}  // namespace
}  // namespace koho::server
