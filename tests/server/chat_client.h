// SPDX-License-Identifier: Apache-2.0
// Sends requests to /v1/chat/completions and assembles a stream as a client does.
#pragma once

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "client.h"
#include "tiny_server.h"

namespace koho::server {

using chat::Json;

inline constexpr const char* kChatPath = "/v1/chat/completions";

inline constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"get_weather","description":"Get the weather in a city.",)"
    R"("parameters":{"type":"object","properties":{"city":{"type":"string","description":"The city."}},"required":["city"]}}},)"
    R"({"type":"function","function":{"name":"web_search","description":"Search the web.",)"
    R"("parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}}])";

inline std::string body(const std::string& question, const std::string& more) {
  std::string text = R"({"model":"tiny",)";
  if (more.find("temperature") == std::string::npos) text += R"("temperature":0,)";
  text += R"("messages":[{"role":"user","content":)";
  append_json_string(text, question);
  return text + "}]" + (more.empty() ? "" : "," + more) + "}";
}

inline Reply ask(const std::string& question, const std::string& more = "") {
  return post(shared_server().port(), kChatPath, body(question, more));
}

/// An assembled stream.
struct Joined {
  std::string content;
  std::string reasoning;
  std::map<std::string, std::string> calls;  // index -> name(arguments)
  std::string finish;
  Json usage;
  bool done = false;
};

inline Joined join(const Reply& reply) {
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

}  // namespace koho::server
