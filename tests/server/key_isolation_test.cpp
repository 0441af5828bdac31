// SPDX-License-Identifier: Apache-2.0
// What one API key sees and does of another's requests: nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "client.h"
#include "server/client_address.h"
#include "server/request_log.h"
#include "server/work_pool.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_directory.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

const char* const kStream =
    R"({"prompt":"The secret is seven","max_tokens":1900,"ignore_eos":true,"stream":true})";

std::string fields_of(const std::string& key, const std::string& id = {}) {
  return "Authorization: Bearer " + key + "\r\n" +
         (id.empty() ? id : "X-Request-Id: " + id + "\r\n");
}

std::string head_of(const std::string& path, const std::string& fields, std::size_t bytes) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         fields + "Content-Length: " + std::to_string(bytes) + "\r\n\r\n";
}

void two_keys(ServerSettings& settings) {
  settings.api_keys = {"sk-one", "sk-two"};
}

TEST(KeyIsolation, OnlyItsOwnKeyAbortsSeesAndExplainsARequest) {
  TinyServer server(two_keys);
  const std::string abort = R"({"request_id":"job"})";
  Client client(server.port());
  client.send(head_of("/v1/completions", fields_of("sk-one", "job"), std::strlen(kStream)) +
              kStream);
  ASSERT_TRUE(client.read_until("data: "));
  EXPECT_EQ(post(server.port(), "/abort_request", abort, fields_of("sk-two")).status, 404);
  EXPECT_EQ(get(server.port(), "/ui/requests", fields_of("sk-two")).body.find("job"),
            std::string::npos);
  EXPECT_EQ(get(server.port(), "/debug/cache/job", fields_of("sk-two")).status, 404);
  EXPECT_NE(get(server.port(), "/ui/requests", fields_of("sk-one")).body.find("job"),
            std::string::npos);
  EXPECT_EQ(get(server.port(), "/debug/cache/job", fields_of("sk-one")).status, 200);
  // The same id of another key is another request.
  Client same(server.port());
  same.send(head_of("/v1/completions", fields_of("sk-two", "job"), std::strlen(kStream)) + kStream);
  ASSERT_TRUE(same.read_until("data: "));
  EXPECT_EQ(post(server.port(), "/abort_request", abort, fields_of("sk-two")).status, 200);
  EXPECT_TRUE(same.read_until("aborted")) << same.pending();
  EXPECT_EQ(client.pending().find("aborted"), std::string::npos);
  EXPECT_EQ(post(server.port(), "/abort_request", abort, fields_of("sk-one")).status, 200);
  EXPECT_TRUE(client.read_until("aborted")) << client.pending();
  ASSERT_TRUE(server.becomes_idle());
  const std::string ended = get(server.port(), "/ui/requests", fields_of("sk-two")).body;
  EXPECT_EQ(at(*chat::parse_json(ended), "ended").items.size(), 1U) << ended;
}

TEST(KeyIsolation, AKeyWhoseHashInTheLogIsAnothersSeesItsOwnRequestsOnly) {
  std::map<std::string, std::string> by_hash;
  std::vector<std::string> same;
  for (int i = 0; same.empty(); ++i) {
    const std::string secret = "sk-" + std::to_string(i);
    const auto [found, is_new] = by_hash.try_emplace(ApiKey(secret).hash(), secret);
    if (!is_new) same = {found->second, secret};
  }
  TinyServer server([&](ServerSettings& settings) {
    settings.api_keys = {same[0].c_str(), same[1].c_str()};
  });
  const std::string body = R"({"prompt":"hi","max_tokens":1})";
  EXPECT_EQ(post(server.port(), "/v1/completions", body, fields_of(same[0], "job")).status, 200);
  const auto sees = [&](const std::string& key) {
    return get(server.port(), "/ui/requests", fields_of(key)).body.find("job") != std::string::npos;
  };
  EXPECT_TRUE(sees(same[0]));
  EXPECT_FALSE(sees(same[1]));
}

/// Who knew another's prompt and answer was told the reasoning between them.
TEST(KeyIsolation, TheReasoningOfAnAnswerIsKeptForItsOwnKey) {
  TinyServer server(two_keys);
  const std::string asked = R"({"role":"user","content":"What is 37 + 48?"})";
  const auto body = [](const std::string& messages) {
    return R"({"temperature":0,"clear_thinking":false,"messages":[)" + messages + "]}";
  };
  const chat::Json message =
      at(post(server.port(), "/v1/chat/completions", body(asked), fields_of("sk-one")).json(),
         "choices.0.message");
  ASSERT_FALSE(text_at(message, "reasoning_content").empty());
  const std::string history = asked + R"(,{"role":"assistant","content":)" +
                              json_string(text_at(message, "content")) + "}," + asked;
  for (const char* path : {"/tokenize", "/v1/chat/completions/render"}) {
    const auto tokens = [&](const char* key) {
      return std::stoi(
          text_at(post(server.port(), path, body(history), fields_of(key)).json(), "count"));
    };
    EXPECT_GT(tokens("sk-one"), tokens("sk-two")) << path;
  }
}

TEST(KeyIsolation, AKeysFilesLeaveRoomForThoseOfOthers) {
  const koho::testing::TemporaryDirectory directory;
  TinyServer server([&](ServerSettings& settings) {
    settings.api_keys = {"sk-one", "sk-two", "sk-three"};
    settings.api_keys[2].file_bytes = 100;
    settings.files_dir = (directory.path() / "store").string();
    settings.files_bytes_max = 1000;
  });
  const auto upload = [&](const std::string& key, std::size_t bytes) {
    const std::string part = "--b\r\nContent-Disposition: form-data; name=";
    const std::string body = part + "\"purpose\"\r\n\r\nbatch\r\n" + part +
                             "\"file\"; filename=\"f\"\r\n\r\n" + std::string(bytes, 'x') +
                             "\r\n--b--\r\n";
    Client client(server.port());
    client.send("POST /v1/files HTTP/1.1\r\nHost: localhost\r\n" + fields_of(key) +
                "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.read_reply().value_or(Reply{});
  };
  int kept = 0;
  while (kept < 20 && upload("sk-one", 100).status == 200) ++kept;
  EXPECT_EQ(kept, 5);
  const Reply full = upload("sk-one", 100);
  EXPECT_EQ(full.status, 429);
  EXPECT_NE(full.body.find("500 bytes of files are yours, 0 more would fit: delete some first"),
            std::string::npos)
      << full.body;
  EXPECT_EQ(upload("sk-two", 250).status, 200);
  EXPECT_EQ(upload("sk-three", 101).status, 429);
  EXPECT_EQ(upload("sk-three", 100).status, 200);
}

TEST(KeyIsolation, AnAbortThatIsPendingIsForItsOwnKey) {
  TinyServer server(two_keys);
  Core& core = server.server().core();
  const auto keys = core.api_keys();
  const std::string one = keys->find("sk-one")->owner();
  const std::string two = keys->find("sk-two")->owner();
  const std::uint64_t first = core.begin_reading();
  const std::uint64_t second = core.begin_reading();
  EXPECT_EQ(core.abort_job({.id = "job", .owner = two}), Core::Abort::pending);
  EXPECT_FALSE(core.end_reading(first, {.id = "job", .owner = one}));
  EXPECT_TRUE(core.end_reading(second, {.id = "job", .owner = two}));
}

TEST(KeyIsolation, PendingAbortsLeaveRoomForThoseOfAnotherKeyAndHaveNoLongNames) {
  TinyServer server(two_keys);
  Core& core = server.server().core();
  const std::uint64_t reader = core.begin_reading();
  EXPECT_EQ(core.abort_job({.id = std::string(1'000'000, 'x'), .owner = "one"}),
            Core::Abort::unknown);
  int pending = 0;
  while (pending < 10'000 &&
         core.abort_job({.id = std::to_string(pending), .owner = "one"}) == Core::Abort::pending)
    ++pending;
  EXPECT_LT(pending, 10'000);
  EXPECT_EQ(core.abort_job({.id = "chatcmpl-" + std::string(128, 'x'), .owner = "two"}),
            Core::Abort::pending);
  EXPECT_TRUE(core.end_reading(reader, {.id = std::string(128, 'x'), .owner = "two"}));
}

TEST(KeyIsolation, AKeyThatIsTakenAwayWhileTheBodyArrivesIsRefused) {
  TinyServer server(two_keys);
  const std::string body = R"({"prompt":"hi","max_tokens":1})";
  for (const char* path : {"/v1/completions", "/tokenize"}) {
    server.server().core().set_api_keys({"sk-one", "sk-two"});
    Client client(server.port());
    client.send(head_of(path, fields_of("sk-two"), body.size()) + body.substr(0, 5));
    // The head has arrived when a later request on another connection is answered.
    EXPECT_EQ(get(server.port(), "/v1/models", fields_of("sk-two")).status, 200);
    server.server().core().set_api_keys({"sk-one"});
    client.send(body.substr(5));
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 401) << path << reply->body;
    EXPECT_EQ(text_at(reply->json(), "error.code"), "invalid_api_key");
  }
  EXPECT_EQ(server.server().core().api_keys()->find("sk-one")->usage().requests, 0U);
}

TEST(ClientAddress, IsNeverThatOfBatches) {
  std::array<std::uint8_t, 16> bytes{};
  bytes[15] = 1;  // ::1
  const std::uint64_t local = client_of_address(std::array<std::uint8_t, 4>{127, 0, 0, 1});
  EXPECT_EQ(client_of_address(bytes), local);
  bytes[10] = bytes[11] = 0xff;  // ::ffff:0.0.0.1
  EXPECT_EQ(client_of_address(bytes), client_of_address(std::array<std::uint8_t, 4>{0, 0, 0, 1}));
  EXPECT_NE(client_of_address(bytes), local);
  bytes[0] = 0x20;
  const std::uint64_t network = client_of_address(bytes);
  bytes[15] = 7;
  EXPECT_EQ(client_of_address(bytes), network);
  bytes[7] = 1;
  EXPECT_NE(client_of_address(bytes), network);
  std::array<std::uint8_t, 16> link{0xfe, 0x80};
  link[15] = 1;
  const std::uint64_t host = client_of_address(link);
  link[15] = 2;
  EXPECT_NE(client_of_address(link), host) << "all of a link have the same network";
  link = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0xfe, 0x80};
  EXPECT_NE(client_of_address(link), 0U);
  EXPECT_NE(client_of_address(std::array<std::uint8_t, 4>{}), 0U);
  EXPECT_NE(client_of_address(std::array<std::uint8_t, 16>{}), 0U);
}

TEST(RequestLog, ForgetsOfTheOwnerThatHasMost) {
  RequestLog log;
  const auto add = [&](const std::string& owner, const std::string& id) {
    log.add({.id = id, .owner = owner});
  };
  add("mine", "first");
  for (int i = 0; i < 500; ++i) add("other", std::to_string(i));
  std::vector<EndedRequest> rows = log.rows();
  EXPECT_EQ(rows.size(), RequestLog::kRowsMax);
  EXPECT_EQ(rows.front().id, "499");
  EXPECT_EQ(rows.back().id, "first");
  for (int i = 0; i < 500; ++i) add("mine", std::to_string(i));
  rows = log.rows();
  EXPECT_EQ(rows.size(), RequestLog::kRowsMax);
  EXPECT_EQ(std::ranges::count(rows, "mine", &EndedRequest::owner), 100);
  EXPECT_EQ(rows.back().owner, "other");
}

const SteadyClock kSteady;

TEST(WorkPool, ClientsTakeTurns) {
  std::promise<void> begin;
  std::promise<void> end;
  std::mutex mutex;
  std::vector<int> order;
  std::promise<void> done;
  {
    WorkPool pool(1, 100, kSteady);
    ASSERT_TRUE(pool.submit(1, [&] { begin.get_future().wait(); }));
    // The other thread notes nothing: of two, one may be the last to note what it began first.
    ASSERT_TRUE(pool.submit(4, [&] { end.get_future().wait(); }));
    const auto note = [&](int client) {
      const std::lock_guard lock(mutex);
      order.push_back(client);
    };
    for (int i = 0; i < 40; ++i) {
      const bool taken = pool.submit(1, [&] { note(1); });
      ASSERT_TRUE(taken) << i;
    }
    ASSERT_TRUE(pool.submit(2, [&] { note(2); }));
    ASSERT_TRUE(pool.submit(3, [&] {
      note(3);
      done.set_value();
    }));
    begin.set_value();
    done.get_future().wait();
    end.set_value();
  }
  const auto place = [&](int client) { return std::ranges::find(order, client) - order.begin(); };
  EXPECT_LE(place(2), 2);
  EXPECT_LE(place(3), 3);
}

TEST(WorkPool, OneClientNeverHasAllThreads) {
  std::promise<void> running;
  std::promise<void> begin;
  const std::shared_future<void> begun = begin.get_future().share();
  WorkPool pool(1, 100, kSteady);
  ASSERT_TRUE(pool.submit(1, [&running, begun] {
    running.set_value();
    begun.wait();
  }));
  running.get_future().wait();
  ASSERT_TRUE(pool.submit(1, [begun] { begun.wait(); }));
  std::promise<void> ran;
  std::future<void> other = ran.get_future();
  ASSERT_TRUE(pool.submit(2, [&] { ran.set_value(); }));
  EXPECT_EQ(other.wait_for(koho::testing::kPatience), std::future_status::ready);
  begin.set_value();
  other.wait();
}

struct SetClock final : Clock {
  std::atomic<std::int64_t> us{1};
  std::int64_t now_us() const override { return us; }
};

TEST(WorkPool, ClientsThatUseMuchNeverHaveAllThreadsTogether) {
  SetClock clock;
  std::promise<void> begin;
  const std::shared_future<void> begun = begin.get_future().share();
  std::atomic<int> running{0};
  std::promise<void> ran;
  WorkPool pool(2, 100, clock);
  for (const std::uint64_t client : {1U, 2U}) {
    const auto used = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(pool.submit(client, [&clock, used] {
      clock.us += 1'000'000;
      used->set_value();
    }));
    used->get_future().wait();
  }
  const auto submit = [&](std::uint64_t client) {
    return pool.submit(client, [&running, begun] {
      ++running;
      begun.wait();
    });
  };
  for (int i = 0; i < 3; ++i)
    for (const std::uint64_t client : {1U, 2U}) ASSERT_TRUE(submit(client));
  std::future<void> other = ran.get_future();
  ASSERT_TRUE(pool.submit(3, [&] { ran.set_value(); }));
  EXPECT_EQ(other.wait_for(koho::testing::kPatience), std::future_status::ready);
  EXPECT_LE(running, 2);
  begin.set_value();
}

TEST(WorkPool, WhoUsedMuchGetsTheLastThreadLater) {
  SetClock clock;
  std::promise<void> begin;
  std::promise<void> running;
  std::promise<void> ran;
  WorkPool pool(1, 100, clock);
  for (int i = 0; i < 100; ++i) {  // for an hour
    const auto used = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(pool.submit(1, [&clock, used] {
      clock.us += 36'000'000;
      used->set_value();
    }));
    used->get_future().wait();
  }
  ASSERT_TRUE(pool.submit(2, [&] {
    running.set_value();
    begin.get_future().wait();
  }));
  running.get_future().wait();
  ASSERT_TRUE(pool.submit(1, [&] { ran.set_value(); }));
  std::future<void> other = ran.get_future();
  EXPECT_EQ(other.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  clock.us += 300'000'000;
  EXPECT_EQ(other.wait_for(koho::testing::kPatience), std::future_status::ready);
  begin.set_value();
}

TEST(WorkPool, OneClientLeavesRoomForOthers) {
  std::promise<void> begin;
  std::promise<void> running;
  WorkPool pool(1, 100, kSteady);
  ASSERT_TRUE(pool.submit(1, [&] {
    running.set_value();
    begin.get_future().wait();
  }));
  running.get_future().wait();
  int own = 0;
  while (own < 200 && pool.submit(1, [] {})) ++own;
  EXPECT_EQ(own, 50);
  EXPECT_TRUE(pool.submit(2, [] {}));
  begin.set_value();
}

}  // namespace
}  // namespace koho::server
