// SPDX-License-Identifier: Apache-2.0
// /v1/completions as its clients see it.
#include <map>
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

constexpr const char* kPath = "/v1/completions";
constexpr const char* kStory =
    "Once upon a time there was an owl named Olga who lived in a small village. One night";

Reply complete(const std::string& prompt_json, const std::string& more = "") {
  std::string body = R"({"model":"tiny",)";
  if (more.find("temperature") == std::string::npos) body += R"("temperature":0,)";
  body += R"("prompt":)" + prompt_json + (more.empty() ? "" : "," + more) + "}";
  return post(shared_server().port(), kPath, body);
}

std::string quoted(const std::string& text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(Completions, ContinuesAText) {
  const Reply reply = complete(quoted(kStory), R"("max_tokens":128)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(text_at(json, "object"), "text_completion");
  EXPECT_TRUE(text_at(json, "id").starts_with("cmpl-"));
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "stop");
  EXPECT_GT(text_at(json, "choices.0.text").size(), 20U);
  EXPECT_EQ(text_at(json, "choices.0.text").find("<|endoftext|>"), std::string::npos);
  const Json shown = complete(quoted(kStory), R"("max_tokens":128,"skip_special_tokens":false,)"
                                              R"("include_stop_str_in_output":true)")
                         .json();
  EXPECT_EQ(text_at(shown, "choices.0.text"), text_at(json, "choices.0.text") + "<|endoftext|>");
}

TEST(Completions, AnswersAsBenchmarkClientsAsk) {
  // `vllm bench serve --ignore-eos`: its body, and what it reads of a stream.
  const Reply reply = post(
      shared_server().port(), kPath,
      R"({"model":"tiny","prompt":)" + quoted(kStory) +
          R"(,"temperature":0.0,"repetition_penalty":1.0,"max_tokens":32,"logprobs":null,)"
          R"("stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"best_of":1})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::vector<std::string> events = reply.events();
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (std::size_t i = 0; i + 2 < events.size(); ++i)
    text += text_at(*chat::parse_json(events[i]), "choices.0.text");
  EXPECT_GT(text.size(), 20U);
  const Json last = *chat::parse_json(events[events.size() - 2]);
  EXPECT_TRUE(at(last, "choices").items.empty());
  EXPECT_EQ(text_at(last, "usage.completion_tokens"), "32");
  EXPECT_EQ(get(shared_server().port(), "/v1/models").status,
            200);  // it gets the model's name there
}

TEST(Completions, SamplesOnlyAllowedTokens) {
  const Json json =
      complete(
          quoted(kStory),
          R"("max_tokens":12,"temperature":1,"return_token_ids":true,"allowed_token_ids":[300,301,400])")
          .json();
  const Json ids = at(json, "choices.0.token_ids");
  ASSERT_EQ(ids.items.size(), 12U);
  for (const Json& id : ids.items)
    EXPECT_TRUE(id.text == "300" || id.text == "301" || id.text == "400") << id.text;
  EXPECT_EQ(complete(quoted(kStory), R"("allowed_token_ids":[])").status, 400);
  EXPECT_EQ(complete(quoted(kStory), R"("allowed_token_ids":[100000])").status, 400);
  EXPECT_EQ(
      complete(quoted(kStory), R"("allowed_token_ids":[300],"structured_outputs":{"regex":"a+"})")
          .status,
      400);
}

TEST(Completions, KeepsBadWordsOut) {
  const std::string plain =
      text_at(complete(quoted(kStory), R"("max_tokens":24)").json(), "choices.0.text");
  // A word of the answer, without the space before it.
  const std::size_t begin = plain.find(' ', 1) + 1;
  const std::string word = plain.substr(begin, plain.find(' ', begin) - begin);
  ASSERT_GT(word.size(), 1U) << plain;
  const std::string other = text_at(
      complete(quoted(kStory), R"("max_tokens":24,"bad_words":[)" + quoted(word) + "]").json(),
      "choices.0.text");
  EXPECT_EQ(other.substr(0, begin - 1), plain.substr(0, begin - 1));
  EXPECT_EQ(other.find(" " + word + " "), std::string::npos) << other;
  EXPECT_EQ(
      text_at(complete(quoted(kStory), R"("max_tokens":24,"bad_words":)" + quoted(word)).json(),
              "choices.0.text"),
      other);
  EXPECT_EQ(complete(quoted(kStory), R"("bad_words":[""])").status, 400);
}

TEST(Completions, SixteenTokensUnlessAsked) {
  const Json json = complete(quoted(kStory)).json();
  EXPECT_EQ(text_at(json, "usage.completion_tokens"), "16");
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "length");
}

TEST(Completions, StreamsWhatItWouldAnswerWhole) {
  const Json whole =
      complete(quoted(kStory), R"("max_tokens":60,"n":2,"temperature":1,"seed":3)").json();
  const Reply stream = complete(
      quoted(kStory),
      R"("max_tokens":60,"n":2,"temperature":1,"seed":3,"stream":true,"stream_options":{"include_usage":true})");
  std::string texts[2];
  std::string usage;
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const Json json = *chat::parse_json(event);
    if (at(json, "choices").items.empty()) {
      usage = text_at(json, "usage.completion_tokens");
      continue;
    }
    texts[std::stoi(text_at(json, "choices.0.index"))] += text_at(json, "choices.0.text");
  }
  ASSERT_FALSE(stream.events().empty()) << stream.body;
  EXPECT_EQ(stream.events().back(), "[DONE]");
  EXPECT_EQ(texts[0], text_at(whole, "choices.0.text"));
  EXPECT_EQ(texts[1], text_at(whole, "choices.1.text"));
  EXPECT_EQ(usage, text_at(whole, "usage.completion_tokens"));
}

TEST(Completions, StreamsThePromptsIdsOnce) {
  for (const char* more : {"", R"(,"echo":true)"}) {
    const Json whole =
        complete(R"(["ab","c"])", R"("max_tokens":3,"n":2,"return_token_ids":true)").json();
    const Reply stream =
        complete(R"(["ab","c"])",
                 R"("max_tokens":3,"n":2,"return_token_ids":true,"stream":true,"ignore_eos":true)" +
                     std::string(more));
    std::map<std::string, std::vector<std::string>> told;  // choice -> one entry per chunk
    for (const std::string& event : stream.events()) {
      if (event == "[DONE]") continue;
      const Json json = *chat::parse_json(event);
      told[text_at(json, "choices.0.index")].push_back(text_at(json, "choices.0.prompt_token_ids"));
    }
    ASSERT_EQ(told.size(), 4U) << stream.body;
    for (const auto& [choice, ids] : told)
      for (std::size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(ids[i],
                  i == 0 ? text_at(whole, "choices." + choice + ".prompt_token_ids") : "null");
  }
}

TEST(Completions, TakesPromptsInFourForms) {
  const Json text = complete(R"("ab")", R"("return_token_ids":true)").json();
  std::string ids = chat::dump_json(at(text, "choices.0.prompt_token_ids"));
  const std::string expected = text_at(text, "choices.0.text");
  for (const std::string& prompt :
       {std::string(R"(["ab"])"), ids, "[" + ids + "]", "[" + ids + "," + ids + "]"}) {
    const Json json = complete(prompt).json();
    EXPECT_EQ(text_at(json, "choices.0.text"), expected) << prompt;
  }
  const Json two = complete("[" + ids + R"(,[5,6,7]])", R"("n":2)").json();
  ASSERT_EQ(at(two, "choices").items.size(), 4U);
  EXPECT_EQ(text_at(two, "choices.1.text"), expected);
  EXPECT_EQ(text_at(two, "choices.3.index"), "3");
}

TEST(Completions, EchoesThePrompt) {
  const Json json = complete(quoted(kStory), R"("echo":true,"max_tokens":4)").json();
  const Json plain = complete(quoted(kStory), R"("max_tokens":4)").json();
  EXPECT_EQ(text_at(json, "choices.0.text"), kStory + text_at(plain, "choices.0.text"));
  const Json none = complete(quoted(kStory), R"("echo":true,"max_tokens":0)").json();
  EXPECT_EQ(text_at(none, "choices.0.text"), kStory);
  EXPECT_EQ(text_at(none, "usage.completion_tokens"), "0");
}

TEST(Completions, EchoesWhatTruncationLeavesOfThePrompt) {
  const Json ids = at(complete(quoted(kStory), R"("max_tokens":0,"return_token_ids":true)").json(),
                      "choices.0.prompt_token_ids");
  for (const std::string& prompt : {quoted(kStory), chat::dump_json(ids)}) {
    const Json json = complete(prompt, R"("echo":true,"max_tokens":2,"logprobs":0,)"
                                       R"("truncate_prompt_tokens":3)")
                          .json();
    const Json names = at(json, "choices.0.logprobs.tokens");
    ASSERT_EQ(names.items.size(), 5U) << chat::dump_json(json);
    std::string text;
    for (std::size_t i = 0; i < names.items.size(); ++i) {
      EXPECT_EQ(text_at(json, "choices.0.logprobs.text_offset." + std::to_string(i)),
                std::to_string(text.size()));
      text += names.items[i].text;
    }
    EXPECT_EQ(text_at(json, "choices.0.text"), text);
    EXPECT_TRUE(std::string(kStory).ends_with(names.items[0].text + names.items[1].text +
                                              names.items[2].text));
  }
}

TEST(Completions, GivesLogprobs) {
  const Json json = complete(quoted(kStory), R"("max_tokens":6,"logprobs":2)").json();
  ASSERT_EQ(at(json, "choices.0.logprobs.tokens").items.size(), 6U);
  EXPECT_EQ(at(json, "choices.0.logprobs.token_logprobs").items.size(), 6U);
  EXPECT_EQ(at(json, "choices.0.logprobs.top_logprobs.0").items.size(), 2U);
  EXPECT_EQ(text_at(json, "choices.0.logprobs.text_offset.0"), "0");
  // The sampled token is in the list, too, however unlikely.
  bool unlikely = false;
  const Json sampled =
      complete(quoted(kStory), R"("max_tokens":40,"logprobs":1,"temperature":2,"seed":1)").json();
  const Json tokens = at(sampled, "choices.0.logprobs.tokens");
  for (std::size_t i = 0; i < tokens.items.size(); ++i) {
    const Json top = at(sampled, "choices.0.logprobs.top_logprobs." + std::to_string(i));
    EXPECT_NE(top.find(tokens.items[i].text), nullptr) << i;
    unlikely = unlikely || top.items.size() == 2;
  }
  EXPECT_TRUE(unlikely);
}

/// The text behind so many characters.
std::string_view behind(std::string_view text, std::size_t characters) {
  std::size_t at = 0;
  while (at < text.size() && (!begins_character(text[at]) || characters-- > 0)) ++at;
  return text.substr(at);
}

TEST(Completions, OffsetsAreCharactersOfTheText) {
  constexpr std::size_t kTokens = 24;
  const std::string prompt =
      quoted("Zo\u00eb, \U0001f600 and \u65e5\u672c. " + std::string(kStory));
  const std::string asked = R"("echo":true,"max_tokens":24,"ignore_eos":true,"logprobs":0,)"
                            R"("skip_special_tokens":false)";
  const Json free = complete(prompt, asked).json();
  const Json names = at(free, "choices.0.logprobs.tokens");
  ASSERT_GT(names.items.size(), kTokens);
  // Each of these holds back the text of one of the first tokens.
  std::string stops;
  for (std::size_t i = names.items.size() - kTokens; stops.empty() || i % 4 > 0; ++i)
    stops += (stops.empty() ? "" : ",") + quoted(names.items[i].text + "\x01");
  for (const std::string& more : {std::string(), R"(,"stop":[)" + stops + "]"}) {
    const Json json = complete(prompt, asked + more).json();
    const Json offsets = at(json, "choices.0.logprobs.text_offset");
    ASSERT_EQ(offsets.items.size(), names.items.size()) << chat::dump_json(json);
    for (std::size_t i = 0; i < names.items.size(); ++i) {
      const std::string& name = names.items[i].text;
      if (name.find("\ufffd") != std::string::npos) continue;  // it is a part of a character
      const auto offset = static_cast<std::size_t>(*offsets.items[i].as_integer());
      EXPECT_TRUE(behind(text_at(json, "choices.0.text"), offset).starts_with(name)) << i;
    }
    std::vector<Json> streamed;
    for (const std::string& event : complete(prompt, asked + more + R"(,"stream":true)").events()) {
      if (event == "[DONE]") break;
      const Json found = at(*chat::parse_json(event), "choices.0.logprobs.text_offset");
      streamed.insert(streamed.end(), found.items.begin(), found.items.end());
    }
    EXPECT_EQ(streamed, offsets.items);
  }
}

TEST(Completions, ScoresThePromptAsEvaluationHarnessesAsk) {
  // The log probabilities of greedily generated tokens...
  const Json generated =
      complete(quoted(kStory), R"("max_tokens":12,"logprobs":1,"return_token_ids":true)").json();
  const Json prompt_ids = at(generated, "choices.0.prompt_token_ids");
  Json all = prompt_ids;
  const Json new_ids = at(generated, "choices.0.token_ids");
  all.items.insert(all.items.end(), new_ids.items.begin(), new_ids.items.end());
  // ... must be those of the same text as a prompt.
  const Json scored =
      complete(chat::dump_json(all), R"("max_tokens":0,"logprobs":1,"echo":true)").json();
  const Json logprobs = at(scored, "choices.0.logprobs.token_logprobs");
  ASSERT_EQ(logprobs.items.size(), all.items.size()) << chat::dump_json(scored);
  EXPECT_TRUE(logprobs.items[0].is_null());
  EXPECT_TRUE(at(scored, "choices.0.logprobs.top_logprobs.0").is_null());
  const Json expected = at(generated, "choices.0.logprobs.token_logprobs");
  for (std::size_t i = 0; i < new_ids.items.size(); ++i) {
    const std::size_t place = prompt_ids.items.size() + i;
    EXPECT_NEAR(std::stod(text_at(logprobs, std::to_string(place))),
                std::stod(text_at(expected, std::to_string(i))), 1e-3)
        << i;
    EXPECT_EQ(at(scored, "choices.0.logprobs.top_logprobs." + std::to_string(place)).keys,
              at(generated, "choices.0.logprobs.top_logprobs." + std::to_string(i)).keys);
  }
  for (std::size_t i = 1; i < logprobs.items.size(); ++i)
    EXPECT_LE(std::stod(text_at(logprobs, std::to_string(i))), 0.0);
  // With one generated token, as lm-eval requests it.
  const Json one_more =
      complete(chat::dump_json(all), R"("max_tokens":1,"logprobs":1,"echo":true)").json();
  EXPECT_EQ(at(one_more, "choices.0.logprobs.token_logprobs").items.size(), all.items.size() + 1);
  EXPECT_EQ(text_at(one_more, "choices.0.text").substr(0, std::string_view(kStory).size()), kStory);
}

TEST(Completions, ScoresLongPromptsOnceAndExactly) {
  // Arbitrary ids with a stop token among them; three chunks and a part of one.
  std::vector<int> ids;
  for (int i = 0; i < 210; ++i) ids.push_back(300 + i * 37 % 3000);
  ids[70] = std::stoi(text_at(
      post(shared_server().port(), "/tokenize", R"({"prompt":"<|user|>"})").json(), "tokens.0"));
  const auto list = [&ids](std::size_t count) {
    std::string text = "[";
    for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + std::to_string(ids[i]);
    return text + "]";
  };
  ASSERT_TRUE(shared_server().becomes_idle());
  const auto computed = [] {
    return shared_server().serving().engine.statistics().computed_tokens;
  };
  const std::uint64_t before = computed();
  const Json json = complete(list(ids.size()), R"("max_tokens":0,"logprobs":2,"echo":true)").json();
  ASSERT_TRUE(shared_server().becomes_idle());
  EXPECT_LE(computed() - before, 2 * ids.size() + 80);
  // What it computed itself it did not find in the cache.
  const std::string cached = "usage.prompt_tokens_details.cached_tokens";
  EXPECT_EQ(text_at(json, cached), "0");
  const Json scores = at(json, "choices.0.logprobs.token_logprobs");
  ASSERT_EQ(scores.items.size(), ids.size()) << chat::dump_json(json);
  // At the chunk boundaries: the same bits as the first token of an answer forced to it.
  for (const std::size_t place :
       {1U, 2U, 63U, 64U, 65U, 66U, 70U, 71U, 128U, 129U, 192U, 193U, 209U}) {
    const std::string forced =
        R"("max_tokens":1,"logprobs":2,"temperature":0,"allowed_token_ids":[)" +
        std::to_string(ids[place]) + "],\"cache_salt\":\"another\"";
    const Json one = complete(list(place), forced).json();
    EXPECT_EQ(text_at(scores, std::to_string(place)),
              text_at(one, "choices.0.logprobs.token_logprobs.0"))
        << place;
    EXPECT_EQ(chat::dump_json(at(json, "choices.0.logprobs.top_logprobs." + std::to_string(place))),
              chat::dump_json(at(one, "choices.0.logprobs.top_logprobs.0")))
        << place;
  }
  // Several prompts, one of them of a single token.
  const Json several = complete("[" + list(1) + "," + list(100) + "," + list(66) + "]",
                                R"("max_tokens":0,"logprobs":2,"echo":true)")
                           .json();
  EXPECT_EQ(text_at(several, cached), "128");
  for (const auto& [choice, count] :
       {std::pair{"0", 1U}, std::pair{"1", 100U}, std::pair{"2", 66U}}) {
    const Json part = at(several, std::string("choices.") + choice + ".logprobs.token_logprobs");
    ASSERT_EQ(part.items.size(), count);
    for (std::size_t i = 1; i < count; ++i)
      EXPECT_EQ(text_at(part, std::to_string(i)), text_at(scores, std::to_string(i)))
          << choice << i;
  }
}

TEST(Completions, StopTokenIdsAndIgnoreEos) {
  const Json plain = complete(quoted(kStory), R"("max_tokens":10,"return_token_ids":true)").json();
  const std::string third = text_at(plain, "choices.0.token_ids.2");
  const Json stopped =
      complete(quoted(kStory), R"("max_tokens":10,"stop_token_ids":[)" + third + "]").json();
  EXPECT_EQ(text_at(stopped, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(text_at(stopped, "choices.0.stop_reason"), third);
  const std::string second = text_at(plain, "choices.0.token_ids.1");
  const Json by_order = complete(quoted(kStory), R"("max_tokens":10,"return_token_ids":true,)"
                                                 R"("stop_token_ids":[[)" +
                                                     second + "," + third + "]]")
                            .json();
  EXPECT_EQ(text_at(by_order, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(text_at(by_order, "choices.0.stop_reason"), "null");
  EXPECT_EQ(text_at(by_order, "usage.completion_tokens"), "3");
  for (const char* wrong :
       {"[[5]]", "[[5,-1]]", "[[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8]]", "[[[1]]]"})
    EXPECT_EQ(complete(quoted(kStory), std::string(R"("stop_token_ids":)") + wrong).status, 400)
        << wrong;
  const Json long_one = complete(quoted(kStory), R"("max_tokens":150,"ignore_eos":true)").json();
  EXPECT_EQ(text_at(long_one, "usage.completion_tokens"), "150");
}

}  // namespace
}  // namespace koho::server
