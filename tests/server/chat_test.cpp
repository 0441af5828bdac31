// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions as its clients see it: answers, reasoning, output options. Tool calls and
// structured output are in chat_tools_test.cpp.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "chat_client.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

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
    std::vector<std::string> reasoning;
    const Reply reply = ask("What is 23 times 7?", R"("stream":true)" + more);
    for (const std::string& event : reply.events()) {
      if (event == "[DONE]") continue;
      const std::string text =
          text_at(*chat::parse_json(event), "choices.0.delta.reasoning_content");
      if (!text.empty() && text != "null") reasoning.push_back(text);
    }
    return reasoning;
  };
  const std::vector<std::string> many = pieces("");
  ASSERT_GT(many.size(), 1U);
  std::string all;
  for (const std::string& piece : many) all += piece;
  EXPECT_EQ(pieces(R"(,"stream_reasoning":true)"), many);
  EXPECT_EQ(pieces(R"(,"stream_reasoning":false)"), std::vector<std::string>{all});
  // Also for an answer of reasoning only.
  EXPECT_EQ(pieces(R"(,"stream_reasoning":false,"max_tokens":3)").size(), 1U);
  EXPECT_EQ(ask("hi", R"("stream_reasoning":"no")").status, 400);
}

TEST(Chat, EndsReasoningWhenItsBudgetIsSpent) {
  const auto reasoning_tokens = [](const std::string& more) {
    const Json json = ask("What is 23 times 7?", more).json();
    EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "stop") << more;
    return std::stoi(text_at(json, "usage.completion_tokens_details.reasoning_tokens"));
  };
  const int all = reasoning_tokens("");
  ASSERT_GT(all, 4);
  // The budget's tokens and </think>.
  EXPECT_EQ(reasoning_tokens(R"("thinking_token_budget":3)"), 4);
  EXPECT_EQ(reasoning_tokens(R"("thinking_token_budget":0)"), 1);
  EXPECT_EQ(reasoning_tokens(R"("thinking_token_budget":10000)"), all);
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
  // The last chunk of a choice, before the chunk with the final usage.
  EXPECT_EQ(counts[counts.size() - 2], counts.back());
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
  // The tag begins with the stop string, so the engine holds the tag back for a moment.
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
    return post(shared_server().port(), kChatPath,
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
        post(shared_server().port(), kChatPath,
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
          shared_server().port(), kChatPath,
          R"({"model":"tiny","temperature":0,"max_tokens":40,"continue_final_message":true,)"
          R"("enable_thinking":false,"messages":[{"role":"user","content":"List the days of the week."},)"
          R"({"role":"assistant","content":"Monday, Tuesday,"}]})")
          .json();
  EXPECT_TRUE(text_at(json, "choices.0.message.content").starts_with(" Wednesday"))
      << text_at(json, "choices.0.message.content");
}

}  // namespace
}  // namespace koho::server
