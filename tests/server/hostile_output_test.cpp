// SPDX-License-Identifier: Apache-2.0
// The model as an adversary: biases make the embedded model generate tags, brackets and broken
// bytes. Clients still get valid JSON, a finish reason, and the same text streamed and not
// streamed.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "client.h"
#include "tiny_server.h"
#include "tokenizer/utf8.h"

namespace koho::server {
namespace {

using chat::Json;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"},"days":{"type":"array"}}}}}])";

/// The first token of a text.
std::string first_id(const std::string& text) {
  std::string body = R"({"prompt":)";
  append_json_string(body, text);
  return text_at(post(shared_server().port(), "/tokenize", body + "}").json(), "tokens.0");
}

/// "logit_bias" that leaves the model these tokens only.
std::string only(const std::vector<std::string>& texts) {
  std::string biases;
  for (const std::string& text : texts)
    biases += (biases.empty() ? "\"" : ",\"") + first_id(text) + "\":100";
  return "\"logit_bias\":{" + biases + "}";
}

/// What an answer says, whole or in a stream, all of its parts in one text each.
struct Said {
  std::string content;
  std::string reasoning;
  std::string calls;
  std::string finish;

  friend bool operator==(const Said&, const Said&) = default;
};

void add(Said& said, const Json& message) {
  for (const auto& [key, text] : {std::pair{"content", &said.content},
                                  {"text", &said.content},
                                  {"reasoning_content", &said.reasoning}})
    if (const Json* part = message.given(key)) *text += part->text;
  if (const Json* calls = message.given("tool_calls"))
    for (const Json& call : calls->items) {
      if (call.find("id") != nullptr) said.calls += "|" + text_at(call, "function.name") + ":";
      said.calls += text_at(call, "function.arguments");
    }
}

Said whole(const char* path, const std::string& members) {
  const Reply reply = post(shared_server().port(), path, "{" + members + "}");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(utf8_valid_bytes(reply.body), reply.body.size());
  const Json choice = at(reply.json(), "choices.0");
  Said said;
  add(said, path == kChat ? at(choice, "message") : choice);
  said.finish = text_at(choice, "finish_reason");
  return said;
}

Said streamed(const char* path, const std::string& members) {
  const Reply reply = post(shared_server().port(), path, "{\"stream\":true," + members + "}");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(utf8_valid_bytes(reply.body), reply.body.size());
  Said said;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const Result<Json> json = chat::parse_json(event);
    EXPECT_TRUE(json.ok()) << event;
    if (!json.ok()) continue;
    const Json choice = at(*json, "choices.0");
    add(said, path == kChat ? at(choice, "delta") : choice);
    if (const std::string finish = text_at(choice, "finish_reason"); finish != "null")
      said.finish = finish;
  }
  return said;
}

Said expect_data(const char* path, const std::string& more) {
  const std::string members =
      R"("model":"tiny","max_tokens":40,"ignore_eos":true,)" +
      std::string(path == kChat ? R"("messages":[{"role":"user","content":"hi"}],)"
                                : R"("prompt":"hi",)") +
      more;
  const Said said = whole(path, members);
  EXPECT_EQ(said, streamed(path, members)) << more;
  EXPECT_TRUE(said.finish == "length" || said.finish == "stop" || said.finish == "tool_calls")
      << said.finish;
  EXPECT_EQ(post(shared_server().port(), path,
                 R"({"model":"tiny","prompt":"a","messages":[{"role":"user","content":"a"}],)"
                 R"("max_tokens":2})")
                .status,
            200);
  return said;
}

TEST(BadInput, AModelThatTalksInTags) {
  const std::string quiet = std::string(R"("enable_thinking":false,)") + kTools + ",";
  // A call that never ends, calls within calls, brackets without end.
  EXPECT_EQ(expect_data(kChat, quiet + only({"<tool_call>"})).finish, "length");
  expect_data(kChat, quiet + only({"<arg_key>"}));
  expect_data(kChat, std::string(kTools) + "," + only({"<think>", "</think>"}));
  EXPECT_EQ(expect_data(kChat, quiet + only({"["})).content.substr(0, 8), "[[[[[[[[");
  EXPECT_EQ(expect_data(kText, only({"["})).content.substr(0, 8), "[[[[[[[[");
  // Any tag after any other, with JSON between them that never closes.
  const std::string soup =
      only({"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
            "</think>", "get", "city", "[", "{", "\""});
  for (int seed = 1; seed <= 3; ++seed) {
    const std::string sampled = R"("temperature":2,"seed":)" + std::to_string(seed) + "," + soup;
    expect_data(kChat, quiet + sampled);
    expect_data(kChat, std::string(kTools) + "," + sampled);
    expect_data(kText, sampled);
  }
}

TEST(BadInput, AModelThatBreaksCharacters) {
  const std::string character = "\xf0\x93\x80\x80";  // of several tokens, none a character
  const std::string half = only({character});
  const std::string replaced = "\xef\xbf\xbd";
  // The beginning of a character, again and again: each is known to be broken when the next comes.
  const Said text = expect_data(kText, half);
  EXPECT_TRUE(text.content.starts_with(replaced + replaced));
  EXPECT_TRUE(expect_data(kChat, R"("enable_thinking":false,)" + half).content.ends_with(replaced));
  expect_data(kChat, half);
  // Halves and whole characters, mixed.
  for (int seed = 1; seed <= 2; ++seed)
    expect_data(kText, R"("temperature":2,"seed":)" + std::to_string(seed) + "," +
                           only({character, "a", "\xc3\xa9", "<|user|>"}));
}

}  // namespace
}  // namespace koho::server
