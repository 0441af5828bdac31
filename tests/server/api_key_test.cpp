// SPDX-License-Identifier: Apache-2.0
// Limits by API key: the file, the arithmetic of a minute, and what clients see of it.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "server/api_keys.h"
#include "server/key_use.h"
#include "tests/support/thread_time.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

TEST(ApiKeyFile, HasLimitsByKey) {
  const auto keys = parse_api_keys(R"({"keys": [
    {"key": "sk-a", "name": "team a", "requests_at_once": 2, "requests_per_minute": 60,
     "tokens_per_minute": 1000, "file_bytes": 9000000000, "priority": 3, "cache_salt": "a"},
    {"key": "sk-b"}]})");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_EQ(keys->size(), 2U);
  EXPECT_EQ((*keys)[0].secret, "sk-a");
  EXPECT_EQ((*keys)[0].name, "team a");
  EXPECT_EQ((*keys)[0].requests_at_once, 2);
  EXPECT_EQ((*keys)[0].requests_per_minute, 60);
  EXPECT_EQ((*keys)[0].tokens_per_minute, 1000);
  EXPECT_EQ((*keys)[0].file_bytes, 9'000'000'000);
  EXPECT_EQ((*keys)[0].priority, 3);
  EXPECT_EQ((*keys)[0].cache_salt, "a");
  EXPECT_EQ((*keys)[1].tokens_per_minute, 0);
  EXPECT_EQ(parse_api_keys(R"([{"key":"x"}])")->size(), 1U);
}

TEST(ApiKeyFile, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"keys":[)", "JSON"},
      {"7", "array of keys"},
      {R"({"keys":[],"more":1})", "array of keys"},
      {R"([7])", "keys[0]: expected an object"},
      {R"([{}])", "keys[0].key is missing"},
      {R"([{"key":""}])", "keys[0].key must be a string of 1..1024 bytes"},
      {R"([{"key":"a"},{"key":"b","tokens":1}])", "keys[1].tokens is unknown"},
      {R"([{"key":"a","priority":8}])", "keys[0].priority must be an integer in 0..7"},
      {R"([{"key":"a","tokens_per_minute":-1}])", "keys[0].tokens_per_minute must be"},
      {R"([{"key":"a","requests_at_once":"2"}])", "keys[0].requests_at_once must be"},
      {R"([{"key":"a","requests_per_minute":1.5}])", "keys[0].requests_per_minute must be"},
      {R"([{"key":"a"},{"key":"a"}])", "keys[1].key stands there twice"},
  };
  for (const auto& [json, told] : cases) {
    const auto keys = parse_api_keys(json);
    ASSERT_FALSE(keys.ok()) << json;
    EXPECT_NE(keys.error().message.find(told), std::string::npos) << keys.error().message;
    // Never the key itself.
    EXPECT_EQ(keys.error().message.find("\"a\""), std::string::npos);
  }
}

std::string field(const ApiKey& key, std::string_view name, std::int64_t now_us) {
  for (const auto& [found, value] : key.fields(now_us))
    if (found == name) return value;
  return "";
}

TEST(ApiKeyLimits, RequestsAtOnceEndWithARequest) {
  ApiKeySettings settings("k");
  settings.requests_at_once = 2;
  ApiKey key(settings);
  EXPECT_FALSE(key.begin(0));
  EXPECT_EQ(field(key, "x-ratelimit-remaining-requests", 0), "1");
  EXPECT_FALSE(key.begin(0));
  const api::Refusal refused = key.begin(0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->code, "rate_limit_exceeded");
  EXPECT_EQ(refused->retry_after_s, 1);
  key.end();
  EXPECT_FALSE(key.begin(0));
  EXPECT_EQ(key.usage().requests, 3U);
  EXPECT_EQ(key.usage().refused, 1U);
  EXPECT_EQ(key.usage().live, 2);
}

TEST(ApiKeyLimits, RequestsOfAMinuteComeBackEvenly) {
  ApiKeySettings settings("k");
  settings.requests_per_minute = 30;
  ApiKey key(settings);
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(key.begin(0)) << i;
  EXPECT_EQ(field(key, "x-ratelimit-limit-requests", 0), "30");
  EXPECT_EQ(field(key, "x-ratelimit-remaining-requests", 0), "0");
  EXPECT_EQ(field(key, "x-ratelimit-reset-requests", 0), "1m0s");
  EXPECT_EQ(key.begin(0)->retry_after_s, 2);
  EXPECT_TRUE(key.begin(2 * kSecond - 1000));
  EXPECT_FALSE(key.begin(2 * kSecond));
  EXPECT_TRUE(key.begin(2 * kSecond));
  EXPECT_EQ(field(key, "x-ratelimit-remaining-requests", 32 * kSecond), "15");
  EXPECT_EQ(field(key, "x-ratelimit-reset-requests", 32 * kSecond), "30s");
  EXPECT_EQ(field(key, "x-ratelimit-remaining-requests", 500 * kSecond), "30");
}

TEST(ApiKeyLimits, WhatIsGeneratedBeyondWhatWasTakenLeavesADebt) {
  ApiKeySettings settings("k");
  settings.tokens_per_minute = 600;  // ten a second
  ApiKey key(settings);
  EXPECT_FALSE(key.take_tokens(400, 0, 0));
  for (int i = 0; i < 300; ++i) key.add_generated(false, 0);
  EXPECT_EQ(field(key, "x-ratelimit-remaining-tokens", 0), "0");
  const api::Refusal refused = key.take_tokens(50, 0, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_after_s, 15);  // 100 of debt and 50
  EXPECT_NE(refused->message.find("limit 600, used 700, requested 50"), std::string::npos)
      << refused->message;
  EXPECT_TRUE(key.take_tokens(50, 0, 14 * kSecond));
  EXPECT_FALSE(key.take_tokens(50, 0, 15 * kSecond));
  // A prompt beyond the limit runs when nothing of the minute is used.
  EXPECT_TRUE(key.take_tokens(5000, 0, 60 * kSecond));
  EXPECT_FALSE(key.take_tokens(5000, 0, 75 * kSecond));
  EXPECT_EQ(field(key, "x-ratelimit-reset-tokens", 75 * kSecond), "8m20s");
  EXPECT_EQ(key.usage().prompt_tokens, 400U + 50U + 5000U);
  EXPECT_EQ(key.usage().generated_tokens, 300U);
}

TEST(ApiKeyLimits, AnswersThatAreStillToComeCount) {
  ApiKeySettings settings("k");
  settings.tokens_per_minute = 2000;
  ApiKey key(settings);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(key.begin(0));
    EXPECT_FALSE(key.take_tokens(5, 900, 0)) << i;
  }
  const api::Refusal refused = key.take_tokens(5, 900, 0);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_after_s, 22);  // 190 are left of 905, 33.3 come back a second
  EXPECT_NE(refused->message.find("limit 2000, used 1810, requested 905"), std::string::npos)
      << refused->message;
  // An answer that is shorter than was asked for gives the rest back.
  for (int i = 0; i < 100; ++i) key.add_generated(true, 0);
  EXPECT_EQ(field(key, "x-ratelimit-remaining-tokens", 0), "190");
  key.end(800);
  EXPECT_EQ(field(key, "x-ratelimit-remaining-tokens", 0), "990");
  EXPECT_FALSE(key.take_tokens(5, 900, 0));
  EXPECT_EQ(key.usage().generated_tokens, 100U);
}

TEST(ApiKeyLimits, ASlowMachineLetsNoMoreAnswersBegin) {
  ApiKeySettings settings("k");
  settings.tokens_per_minute = 2000;
  ApiKey key(settings);
  // Of 900 tokens, one after another, seven seconds each: 233 tokens come back in that time.
  EXPECT_FALSE(key.take_tokens(5, 900, 0));
  EXPECT_FALSE(key.take_tokens(5, 900, 7 * kSecond));
  EXPECT_TRUE(key.take_tokens(5, 900, 14 * kSecond));
  EXPECT_FALSE(key.take_tokens(5, 900, 22 * kSecond));
  EXPECT_TRUE(key.take_tokens(5, 900, 29 * kSecond));
}

TEST(ApiKeyLimits, WhatTheEngineRefusedIsGivenBack) {
  ApiKeySettings settings("k");
  settings.tokens_per_minute = 600;
  ApiKey key(settings);
  EXPECT_FALSE(key.take_tokens(400, 0, 0));
  key.give_back(300, true);
  EXPECT_EQ(field(key, "x-ratelimit-remaining-tokens", 0), "500");
  EXPECT_EQ(key.usage().prompt_tokens, 100U);
}

TEST(ApiKeyLimits, ChangedLimitsKeepWhatWasUsed) {
  ApiKeySettings settings("k");
  settings.tokens_per_minute = 600;
  const ApiKeys before({settings, "other"}, {});
  EXPECT_FALSE(before.find("k")->take_tokens(500, 0, 0));
  settings.tokens_per_minute = 1000;
  const ApiKeys after({settings}, before);
  EXPECT_EQ(after.find("k"), before.find("k"));
  EXPECT_EQ(field(*after.find("k"), "x-ratelimit-remaining-tokens", 0), "500");
  EXPECT_EQ(after.find("other"), nullptr);
  EXPECT_EQ(after.find("k")->usage().prompt_tokens, 500U);
}

TEST(ApiKeyLimits, AKeyIsFoundAmongManyAsFastAsAmongFew) {
  const auto cost_among = [](int count) {
    std::vector<ApiKeySettings> all;
    for (int i = 0; i < count; ++i)
      all.emplace_back("sk-" + std::to_string(i) + "-abcdefghijklmnopqrstuvwxyz");
    const ApiKeys keys(all, {});
    EXPECT_EQ(keys.find("sk-3-abcdefghijklmnopqrstuvwxyz"), keys.all()[3]);
    EXPECT_EQ(keys.find("sk-3-abcdefghijklmnopqrstuvwxyZ"), nullptr);
    const double begin = testing::thread_seconds();
    for (int i = 0; i < 5000; ++i) EXPECT_EQ(keys.find(std::string(1024, 'x')), nullptr);
    return testing::thread_seconds() - begin;
  };
  const double few = cost_among(10);
  EXPECT_LT(cost_among(5000), 50 * few);  // it was compared with all
}

TEST(ApiKeyLimits, ALimitThatComesGivesNothingBackOfWhatWasTakenBefore) {
  ApiKeySettings settings("k");
  const auto key = std::make_shared<ApiKey>(settings);
  const auto left = [&] { return field(*key, "x-ratelimit-remaining-tokens", 0); };
  auto use = std::make_shared<KeyUse>(key);
  auto forgiven = std::make_shared<KeyUse>(key);
  for (const auto& one : {use, forgiven})
    EXPECT_FALSE(one->begin(0) || one->take_tokens(100, 900, 0));
  use->use_prompt(60);
  forgiven->use_prompt();
  settings.tokens_per_minute = 1000;
  key->change(settings);
  EXPECT_FALSE(key->take_tokens(700, 0, 0));
  use->add_generated(10, 0);
  forgiven->add_generated(10, 0);
  EXPECT_EQ(left(), "280");
  forgiven->forgive();
  forgiven.reset();
  use.reset();
  EXPECT_EQ(left(), "280");
  EXPECT_EQ(key->usage().prompt_tokens, 860U);
}

TEST(ApiKeyLimits, AKeySaysPriorityClientAndSalt) {
  ApiKeySettings settings("k");
  settings.priority = 3;
  settings.cache_salt = "tenant";
  api::GenerationRequest request;
  request.base.priority = 1;
  ApiKey(settings).apply(request);
  EXPECT_EQ(request.base.priority, 3);  // not better than the key's
  EXPECT_NE(request.base.client, 0U);
  const CacheSalt salt = request.base.salt;
  EXPECT_NE(salt, CacheSalt{});
  api::GenerationRequest worse;
  worse.base.priority = 6;
  worse.base.salt.low = 7;  // of the request's own
  ApiKey(settings).apply(worse);
  EXPECT_EQ(worse.base.priority, 6);
  EXPECT_NE(worse.base.salt, salt);
  api::GenerationRequest other;
  settings.cache_salt.clear();
  settings.secret = "l";
  ApiKey(settings).apply(other);
  EXPECT_NE(other.base.client, request.base.client);
  EXPECT_NE(other.key, request.key);
  EXPECT_EQ(other.base.salt, CacheSalt{});
}

TEST(ApiKeyLimits, WhatIsGeneratedUnreadIsOfTheSameMinute) {
  ApiKeySettings settings("k");
  settings.tokens_per_minute = 1000;
  const auto key = std::make_shared<ApiKey>(settings);
  const auto left = [&] { return field(*key, "x-ratelimit-remaining-tokens", 0); };
  auto use = std::make_shared<KeyUse>(key);
  EXPECT_FALSE(use->begin(0) || use->take_tokens(100, 50, 0));
  use->use_prompt();
  use->add_generated(20, 0);
  EXPECT_EQ(left(), "850");
  use->add_generated(40, 0);  // ten beyond
  EXPECT_EQ(left(), "840");
  use.reset();
  EXPECT_EQ(left(), "840");
  use = std::make_shared<KeyUse>(key);
  EXPECT_FALSE(use->begin(0) || use->take_tokens(100, 50, 0));
  use->use_prompt(70);
  use->add_generated(20, 0);
  use->give_back_prompts();
  use->forgive();
  use->add_generated(7, 0);  // until the engine knew
  use.reset();
  EXPECT_EQ(left(), "840");
  EXPECT_EQ(key->usage().generated_tokens, 87U);
  EXPECT_EQ(key->usage().live, 0);
}

// ---- as clients see it

const char* const kBody = R"({"model":"tiny","prompt":[5,6,7,8],"max_tokens":3,"ignore_eos":true})";

std::string bearer(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

/// What a minute gives back does not depend on how long the answers take.
struct StoppedClock final : Clock {
  std::int64_t now_us() const override { return kSecond; }
};

ApiKeySettings limited() {
  ApiKeySettings key("sk-limited");
  key.name = "team \"a\"";
  key.requests_per_minute = 4;
  key.tokens_per_minute = 1000;
  return key;
}

TEST(ApiKeyLimits, AnAnswerTellsWhatItGaveBack) {
  const StoppedClock clock;
  TinyServer server([](ServerSettings& settings) { settings.api_keys = {limited()}; },
                    tiny_runtime(), clock);
  const auto left_after = [&](const std::string& fields) {
    const Reply reply = post(server.port(), "/v1/completions", R"({"prompt":[5,6,7,8],)" + fields,
                             bearer("sk-limited"));
    return reply.fields.at("x-ratelimit-remaining-tokens");
  };
  // The first token ends the answer: of 900 that it may have it takes one.
  const std::string stopped = R"("max_tokens":900,"allowed_token_ids":[9],"stop_token_ids":[9])";
  EXPECT_EQ(left_after(stopped + "}"), "995");
  EXPECT_EQ(left_after(stopped + R"(,"n":200})"), "995");  // refused
  EXPECT_EQ(left_after(stopped + R"(,"stop":["z"]})"), "990");
}

TEST(ApiKeyLimits, AnswersTellWhatIsLeft) {
  const StoppedClock clock;
  TinyServer server(
      [](ServerSettings& settings) {
        settings.api_keys = {limited(), "sk-free"};
      },
      tiny_runtime(), clock);
  const Reply first = post(server.port(), "/v1/completions", kBody, bearer("sk-limited"));
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(first.fields.at("x-ratelimit-limit-requests"), "4");
  EXPECT_EQ(first.fields.at("x-ratelimit-remaining-requests"), "3");
  EXPECT_EQ(first.fields.at("x-ratelimit-limit-tokens"), "1000");
  EXPECT_EQ(first.fields.at("x-ratelimit-remaining-tokens"), "993");  // without 4 and 3
  EXPECT_EQ(first.fields.at("x-ratelimit-reset-requests"), "15s");
  // A stream tells before its first token; the prompt is charged.
  std::string streamed = kBody;
  streamed.insert(1, R"("stream":true,)");
  const Reply stream = post(server.port(), "/v1/completions", streamed, bearer("sk-limited"));
  ASSERT_EQ(stream.status, 200) << stream.body;
  EXPECT_EQ(stream.fields.at("x-ratelimit-remaining-requests"), "2");
  // A request that is refused for its body counts as one, without tokens.
  const Reply wrong =
      post(server.port(), "/v1/completions", R"({"model":7})", bearer("sk-limited"));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.fields.at("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(post(server.port(), "/v1/completions", kBody, bearer("sk-limited")).status, 200);
  const Reply beyond = post(server.port(), "/v1/completions", kBody, bearer("sk-limited"));
  EXPECT_EQ(beyond.status, 429);
  EXPECT_EQ(text_at(beyond.json(), "error.code"), "rate_limit_exceeded");
  EXPECT_EQ(text_at(beyond.json(), "error.type"), "rate_limit_error");
  EXPECT_EQ(beyond.fields.at("x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(beyond.fields.at("retry-after"), "15");
  // It is the key that is at its limit, not the server: no 529.
  const Reply messages =
      post(server.port(), "/v1/messages",
           R"({"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"a"}]})",
           bearer("sk-limited"));
  EXPECT_EQ(messages.status, 429);
  EXPECT_EQ(text_at(messages.json(), "error.type"), "rate_limit_error");
  const Reply free = post(server.port(), "/v1/completions", kBody, bearer("sk-free"));
  EXPECT_EQ(free.status, 200);
  EXPECT_EQ(free.fields.count("x-ratelimit-limit-requests"), 0U);

  const std::string page = get(server.port(), "/metrics").body;
  const std::string hash = server.server().core().api_keys()->find("sk-limited")->hash();
  const std::string labels =
      R"({model_name="tiny",engine="0",key=")" + hash + R"(",key_name="team \"a\"")";
  for (const char* row :
       {"koho_key_requests_total*,result=\"begun\"} 4\n",
        "koho_key_requests_total*,result=\"refused\"} 2\n",
        "koho_key_tokens_total*,kind=\"prompt\"} 12\n",
        "koho_key_tokens_total*,kind=\"generation\"} 9\n", "koho_key_requests_live*} 0\n"}) {
    std::string text = row;
    text.replace(text.find('*'), 1, labels);
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(page.find("sk-"), std::string::npos) << "the page shows a key";
}

TEST(ApiKeyLimits, PromptsThatAreRefusedAreGivenBack) {
  TinyServer server([](ServerSettings& settings) { settings.api_keys = {"sk-full"}; });
  Core& core = server.server().core();
  const std::shared_ptr<ApiKey> key = core.api_keys()->find("sk-full");
  core.engine_requests()->change(key->client(), 1'000'000);
  for (const char* more : {"", R"(,"echo":true,"logprobs":1)"}) {
    const Reply refused =
        post(server.port(), "/v1/completions",
             std::string(R"({"prompt":[5,6,7,8],"max_tokens":1)") + more + "}", bearer("sk-full"));
    EXPECT_EQ(refused.status, 429) << refused.body;
    EXPECT_EQ(key->usage().prompt_tokens, 0U) << more;
  }
  core.engine_requests()->give_back(key->client(), 1'000'000);
  // So are those whose log probabilities are too many.
  std::string prompt = "[5";
  for (int i = 1; i < 1900; ++i) prompt += ",5";
  std::string prompts = prompt + "]";
  for (int i = 1; i < 9; ++i) prompts += "," + prompt + "]";
  const Reply refused =
      post(server.port(), "/v1/completions",
           R"({"prompt":[)" + prompts + R"(],"max_tokens":1,"echo":true,"logprobs":1})",
           bearer("sk-full"));
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_EQ(key->usage().prompt_tokens, 0U);
}

TEST(ApiKeyLimits, RequestsAtOnceAreOfTheKeyAlone) {
  ApiKeySettings one("sk-one");
  one.requests_at_once = 1;
  TinyServer server([&](ServerSettings& settings) { settings.api_keys = {one, "sk-two"}; });
  Client stream(server.port());
  const std::string body =
      R"({"model":"tiny","prompt":[5],"max_tokens":1500,"ignore_eos":true,"stream":true})";
  stream.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\n" +
      bearer("sk-one") + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(stream.read_until("data: "));
  EXPECT_EQ(post(server.port(), "/v1/completions", kBody, bearer("sk-one")).status, 429);
  EXPECT_EQ(post(server.port(), "/v1/completions", kBody, bearer("sk-two")).status, 200);
  stream.reset();
  ASSERT_TRUE(server.becomes_idle());
  EXPECT_EQ(post(server.port(), "/v1/completions", kBody, bearer("sk-one")).status, 200);
}

TEST(ApiKeyLimits, AnswersAtOnceAreWithinTheTokensOfAMinute) {
  ApiKeySettings key("sk-limited");
  key.tokens_per_minute = 2000;
  const StoppedClock clock;
  TinyServer server([&](ServerSettings& settings) { settings.api_keys = {key}; }, tiny_runtime(),
                    clock);
  const std::string body =
      R"({"model":"tiny","prompt":[5],"max_tokens":900,"ignore_eos":true,"stream":true})";
  Client first(server.port());
  Client second(server.port());
  for (Client* client : {&first, &second}) {
    client->send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\n" +
        bearer("sk-limited") + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
        body);
    ASSERT_TRUE(client->read_until("data: "));
  }
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(post(server.port(), "/v1/completions", body, bearer("sk-limited")).status, 429);
  // Their end gives back what they did not generate.
  first.reset();
  second.reset();
  ASSERT_TRUE(server.becomes_idle());
  EXPECT_EQ(post(server.port(), "/v1/completions", kBody, bearer("sk-limited")).status, 200);
}

TEST(ApiKeyLimits, KeysWithASaltShareNoCachedPages) {
  std::vector<ApiKeySettings> keys{"sk-a", "sk-b", "sk-c"};
  keys[1].cache_salt = "b";
  keys[2].cache_salt = "c";
  TinyServer server([&](ServerSettings& settings) { settings.api_keys = keys; });
  std::string prompt = "[";
  for (int i = 0; i < 200; ++i) prompt += std::to_string(100 + i * 7 % 500) + ",";
  prompt.back() = ']';
  const std::string body = R"({"model":"tiny","max_tokens":1,"prompt":)" + prompt + "}";
  const auto cached = [&](const std::string& key) {
    const Reply reply = post(server.port(), "/v1/completions", body, bearer(key));
    return text_at(reply.json(), "usage.prompt_tokens_details.cached_tokens");
  };
  EXPECT_EQ(cached("sk-b"), "0");
  EXPECT_EQ(cached("sk-c"), "0");
  EXPECT_EQ(cached("sk-a"), "0");
  EXPECT_EQ(cached("sk-b"), "192");
  EXPECT_EQ(cached("sk-c"), "192");
}

}  // namespace
}  // namespace koho::server
