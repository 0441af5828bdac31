// SPDX-License-Identifier: Apache-2.0
// Limits of API keys under threads: exactly what a limit allows passes, and requests beside reloads
// of the key file are counted once. CI runs these under ThreadSanitizer.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "server/api_keys.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

constexpr int kThreads = 4;

void on_threads(const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(ApiKeyRaces, NoMoreRequestsAtOnceThanTheLimit) {
  ApiKeySettings settings("k");
  settings.requests_at_once = 2;
  ApiKey key(settings);
  std::atomic<int> live = 0;
  std::atomic<int> most = 0;
  std::atomic<std::uint64_t> begun = 0;
  std::atomic<std::uint64_t> refused = 0;
  on_threads([&](int) {
    for (int i = 0; i < 5'000; ++i) {
      if (key.begin(i)) {
        ++refused;
        continue;
      }
      const int now = ++live;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      ++begun;
      --live;
      key.end();
    }
  });
  EXPECT_LE(most, 2);
  EXPECT_EQ(key.usage().requests, begun);
  EXPECT_EQ(key.usage().refused, refused);
  EXPECT_EQ(begun + refused, 5'000U * kThreads);
  EXPECT_EQ(key.usage().live, 0);
}

TEST(ApiKeyRaces, ExactlyTheRequestsAndTokensOfAMinutePass) {
  ApiKeySettings settings("k");
  settings.requests_per_minute = 100;
  settings.tokens_per_minute = 1000;
  ApiKey key(settings);
  std::atomic<int> begun = 0;
  std::atomic<int> prompts = 0;
  on_threads([&](int) {
    for (int i = 0; i < 50; ++i) begun += key.begin(0) ? 0 : 1;
    for (int i = 0; i < 100; ++i) prompts += key.take_tokens(7, 0, 0) ? 0 : 1;
  });
  EXPECT_EQ(begun, 100);
  EXPECT_EQ(prompts, 142);  // of 7 tokens; 6 are left
  EXPECT_FALSE(key.take_tokens(6, 0, 0));
  EXPECT_TRUE(key.take_tokens(1, 0, 0));
}

TEST(ApiKeyRaces, AChangedLimitHoldsForWhoComesNext) {
  ApiKeySettings settings("k");
  settings.requests_at_once = 1;
  ApiKey key(settings);
  std::atomic<int> live = 0;
  std::atomic<bool> beyond = false;
  on_threads([&](int thread) {
    for (int i = 0; i < 5'000; ++i) {
      if (thread == 0) {
        ApiKeySettings changed = settings;
        changed.requests_at_once = 1 + i % 3;
        key.change(changed);
      } else if (!key.begin(0)) {
        if (++live > 3) beyond = true;
        --live;
        key.end();
      }
    }
  });
  EXPECT_FALSE(beyond);
  EXPECT_EQ(key.usage().live, 0);
}

/// What clients of one key saw.
struct Seen {
  std::atomic<std::uint64_t> served = 0;
  std::atomic<std::uint64_t> limited = 0;
  std::atomic<std::uint64_t> unknown = 0;
  std::atomic<std::uint64_t> others = 0;

  void add(int status) {
    ++(status == 200 ? served : status == 429 ? limited : status == 401 ? unknown : others);
  }
};

TEST(ApiKeyRaces, RequestsBesideReloadsAreCountedOnce) {
  // Of one key the limits change, one comes and goes, one stays as it is.
  const auto keys = [](int round) {
    std::vector<ApiKeySettings> made{"sk-changes", "sk-stays"};
    made[0].requests_at_once = 1 + round % 2;
    made[0].tokens_per_minute = round % 3 == 0 ? 0 : 600'000;
    if (round % 2 == 0) made.emplace_back("sk-goes");
    return made;
  };
  TinyServer server([&](ServerSettings& settings) { settings.api_keys = keys(0); });
  const std::array<const char*, 3> names{"sk-changes", "sk-stays", "sk-goes"};
  std::array<Seen, 3> seen;
  const std::shared_ptr<ApiKey> changes = server.server().core().api_keys()->find(names[0]);
  const std::shared_ptr<ApiKey> stays = server.server().core().api_keys()->find(names[1]);
  std::atomic<bool> done = false;
  std::thread operator_thread([&] {
    for (int round = 1; !done; ++round) {
      server.server().core().set_api_keys(keys(round));
      EXPECT_EQ(get(server.port(), "/metrics").status, 200);
    }
    server.server().core().set_api_keys(keys(0));
  });
  on_threads([&](int thread) {
    for (int i = 0; i < 12; ++i) {
      const auto which = static_cast<std::size_t>(i + thread) % names.size();
      const bool stream = i % 4 == 0;
      const std::string body =
          std::string(R"({"model":"tiny","prompt":[5,6,7,8],"max_tokens":3,"ignore_eos":true)") +
          (stream ? R"(,"stream":true})" : "}");
      const Reply reply = post(server.port(), "/v1/completions", body,
                               std::string("Authorization: Bearer ") + names[which] + "\r\n");
      seen[which].add(reply.status);
      if (stream && reply.status == 200) {
        EXPECT_NE(reply.body.find("[DONE]"), std::string::npos);
      }
    }
  });
  done = true;
  operator_thread.join();
  ASSERT_TRUE(server.becomes_idle());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(seen[i].others, 0U) << names[i];
    EXPECT_GT(seen[i].served, 0U) << names[i];
  }
  EXPECT_EQ(seen[0].unknown, 0U);
  EXPECT_EQ(seen[1].unknown, 0U);
  EXPECT_EQ(seen[1].limited, 0U);
  EXPECT_EQ(seen[2].served + seen[2].unknown, 16U);
  // A key that the file has always had is one object all the time, and knows each request once.
  const std::shared_ptr<const ApiKeys> now = server.server().core().api_keys();
  EXPECT_EQ(now->find(names[0]), changes);
  EXPECT_EQ(now->find(names[1]), stays);
  const std::shared_ptr<ApiKey> kept[] = {changes, stays};
  for (std::size_t i = 0; i < 2; ++i) {
    const ApiKey::Usage usage = kept[i]->usage();
    EXPECT_EQ(usage.requests, seen[i].served) << names[i];
    EXPECT_EQ(usage.refused, seen[i].limited) << names[i];
    EXPECT_EQ(usage.prompt_tokens, 4 * seen[i].served) << names[i];
    EXPECT_EQ(usage.generated_tokens, 3 * seen[i].served) << names[i];
    EXPECT_EQ(usage.live, 0) << names[i];
  }
}

TEST(ApiKeyRaces, TokensThatWereLeftUnreadAreCounted) {
  TinyServer server([](ServerSettings& settings) { settings.api_keys = {"sk-one", "sk-two"}; });
  const Engine& engine = server.serving().engine;
  ASSERT_TRUE(server.becomes_idle());  // the tests before this one share it
  const std::uint64_t before = engine.statistics().sampled_tokens;
  on_threads([&](int thread) {
    const std::string key = thread % 2 == 0 ? "sk-one" : "sk-two";
    for (int i = 0; i < 12; ++i) {
      const std::string id = "cut-" + std::to_string(thread) + "-" + std::to_string(i);
      const std::string body =
          std::string(R"({"model":"tiny","prompt":[5,6],"max_tokens":900,"ignore_eos":true)") +
          (i % 3 == 0 ? R"(,"n":2)" : "") + R"(,"stream":true})";
      const std::string fields = "Authorization: Bearer " + key + "\r\n";
      Client client(server.port());
      client.send(
          "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
          "application/json\r\n" +
          fields + "X-Request-Id: " + id + "\r\nContent-Length: " + std::to_string(body.size()) +
          "\r\n\r\n" + body);
      EXPECT_TRUE(client.read_until("data: "));
      if (i % 4 == 1)
        post(server.port(), "/abort_request", R"({"request_id":")" + id + "\"}", fields);
      client.reset();
    }
  });
  ASSERT_TRUE(server.becomes_idle());
  const std::shared_ptr<const ApiKeys> keys = server.server().core().api_keys();
  const ApiKey::Usage one = keys->find("sk-one")->usage();
  const ApiKey::Usage two = keys->find("sk-two")->usage();
  EXPECT_EQ(one.live + two.live, 0);
  EXPECT_EQ(one.generated_tokens + two.generated_tokens,
            engine.statistics().sampled_tokens - before);
}

}  // namespace
}  // namespace koho::server
