// SPDX-License-Identifier: Apache-2.0
// Places, memory and threads that one client cannot take from the others: clients differ by their
// addresses.
#include "server/client_shares.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "tests/support/patience.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using koho::testing::comes_true;

constexpr const char* kOther = "127.0.0.2";

std::string request_of(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(ClientShares, OneAloneHasHalfAndWhoeverComesFindsSome) {
  const auto all = std::make_shared<ClientShares>(8);
  ClientShares& shares = *all;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(shares.take(1, 1)) << i;
  EXPECT_FALSE(shares.take(1, 1));
  EXPECT_FALSE(shares.take(2, 3));
  EXPECT_TRUE(shares.take(2, 2));
  EXPECT_TRUE(shares.take(3, 1));
  EXPECT_TRUE(shares.take(4, 1)) << "the first one is given if there is one";
  EXPECT_FALSE(shares.take(5, 1));
  shares.give_back(1, 4);
  {
    ClientShare one;
    EXPECT_TRUE(one.take(all, 5, 2));
    EXPECT_FALSE(shares.take(5, 1));
    ClientShare moved = std::move(one);
  }
  EXPECT_TRUE(shares.take(5, 2)) << "it was given back";
}

TEST(ClientShares, APromptListThatFillsTheQueueLeavesPlacesForAnotherAddress) {
  const std::unique_ptr<Runtime> runtime =
      start_tiny_runtime({.threads = 2, .sequences = 2, .queue = 14});
  TinyServer server({}, *runtime);
  const auto list_of = [](int prompts, const std::string& more) {
    std::string list = "[5,6]";
    for (int i = 1; i < prompts; ++i) list += ",[5,6]";
    return R"({"model":"tiny","prompt":[)" + list + "]," + more + "}";
  };
  EXPECT_EQ(post(server.port(), "/v1/completions", list_of(17, R"("max_tokens":1)")).status, 429);
  // The engine gives back what the refused list had.
  ASSERT_TRUE(comes_true([&] {
    return post(server.port(), "/v1/completions", list_of(16, R"("max_tokens":1)")).status == 200;
  }));
  Client many(server.port());
  ASSERT_TRUE(many.send(request_of(
      "/v1/completions", list_of(16, R"("max_tokens":1900,"ignore_eos":true,"stream":true)"))));
  ASSERT_TRUE(many.read_until("data: "));
  EXPECT_EQ(post(server.port(), "/v1/completions", list_of(1, R"("max_tokens":1)")).status, 429);
  Client other(server.port(), kOther);
  const std::optional<Reply> reply = other.post(
      "/v1/completions", R"({"model":"tiny","prompt":[7,8],"max_tokens":3,"ignore_eos":true})");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
  many.reset();
  EXPECT_TRUE(server.becomes_idle());
  EXPECT_EQ(post(server.port(), "/v1/completions",
                 R"({"model":"tiny","prompt":[[5],[6]],"n":8,"max_tokens":1})")
                .status,
            200)
      << "the places come back";
}

TEST(ClientShares, ListsThatAreCutLeavePlacesForAnotherAddress) {
  const std::unique_ptr<Runtime> runtime =
      start_tiny_runtime({.threads = 2, .sequences = 2, .queue = 30});
  TinyServer server({}, *runtime);
  std::string list = "[5,6]";
  for (int i = 1; i < 32; ++i) list += ",[5,6]";
  const std::string request =
      request_of("/v1/completions",
                 R"({"model":"tiny","max_tokens":99,"ignore_eos":true,"stream":true,"prompt":[)" +
                     list + "]}");
  std::atomic<bool> over{false};
  std::thread cutting([&] {
    while (!over) {
      Client many(server.port());
      if (many.send(request)) many.read_until("\r\n");
      many.reset();
    }
  });
  Client other(server.port(), kOther);
  for (int i = 0; i < 100; ++i) {
    const std::optional<Reply> reply =
        other.post("/v1/completions", R"({"model":"tiny","prompt":[7],"max_tokens":1})");
    EXPECT_TRUE(reply && reply->status == 200) << (reply ? reply->body : "");
    if (HasFailure()) break;
  }
  over = true;
  cutting.join();
}

TEST(ClientShares, BodiesOfOneAddressLeaveMemoryForThoseOfAnother) {
  TinyServer server([](ServerSettings& settings) {
    settings.http.body_bytes = 4'000'000;
    settings.bodies_bytes_max = 1;  // the least budget: four bodies
  });
  BodyBudget& budget = server.server().core().bodies();
  const auto begun = [](std::size_t bytes) {
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           "Content-Length: " +
           std::to_string(bytes + 1) + "\r\n\r\n" + std::string(bytes, ' ');
  };
  std::vector<std::unique_ptr<Client>> clients;
  for (const std::size_t bytes : {3'900'000U, 3'900'000U, 900'000U, 250'000U, 60'000U, 4000U, 200U})
    for (int i = 0; i < 40; ++i) {
      // In this order: a body refused since then is in `before`, but not in `refused`.
      const std::uint64_t refused = server.counters().rejected_full.load();
      const std::size_t before = budget.bytes();
      const auto is_refused = [&] { return server.counters().rejected_full.load() > refused; };
      clients.push_back(std::make_unique<Client>(server.port()));
      EXPECT_TRUE(clients.back()->send(begun(bytes)) || is_refused());
      ASSERT_TRUE(comes_true([&] { return budget.bytes() > before || is_refused(); }));
      if (is_refused()) break;
    }
  EXPECT_LE(budget.bytes(), 12'000'000U) << "three quarters of it";
  for (const std::size_t bytes : {10U, 5000U, 1'000'000U}) {
    Client other(server.port(), kOther);
    const std::string body =
        R"({"model":"tiny","max_tokens":1,"prompt":[7],"x":")" + std::string(bytes, 'x') + "\"}";
    const std::optional<Reply> reply = other.post("/v1/completions", body);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << bytes << " " << reply->body;
  }
  clients.clear();
  EXPECT_TRUE(comes_true([&] { return budget.bytes() == 0; }));
}

TEST(ClientShares, AnswersThatNobodyReadsAreBoundedForTheirAddress) {
  TinyServer server([](ServerSettings& settings) {
    settings.http.body_bytes = 4'000'000;
    settings.bodies_bytes_max = 1;  // 16 MB of bodies, and of unread answers
  });
  std::string ids = "1525";  // the longest token: 4 MB of text
  for (int i = 1; i < 200'000; ++i) ids += ",1525";
  const std::string request = request_of("/detokenize", R"({"tokens":[)" + ids + "]}");
  std::vector<std::unique_ptr<Client>> deaf;
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    deaf.push_back(std::make_unique<Client>(server.port()));
    deaf.back()->set_receive_buffer(4096);
    ASSERT_TRUE(deaf.back()->send(request));
    ASSERT_TRUE(deaf.back()->read_until("\r\n"));
    if (deaf.back()->pending().starts_with("HTTP/1.1 429")) ++refused;
  }
  EXPECT_GE(refused, 9);
  EXPECT_LE(server.server().core().unread_answers().bytes(), 16'000'000U);
  EXPECT_EQ(get(server.port(), "/livez").status, 200);
  Client other(server.port(), kOther);
  const std::optional<Reply> reply = other.post("/detokenize", R"({"tokens":[1525]})");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
  deaf.clear();
  EXPECT_TRUE(comes_true([&] { return server.server().core().unread_answers().bytes() == 0; }));
  EXPECT_EQ(post(server.port(), "/detokenize", R"({"tokens":[1525]})").status, 200);
}

TEST(ClientShares, PipelinedAnswersOfOpenPathsThatNobodyReadsAreBounded) {
  TinyServer server([](ServerSettings& settings) {
    settings.http.body_bytes = 100'000;
    settings.bodies_bytes_max = 1;  // 400 KB of unread answers
    settings.api_keys = {"sk-one"};
  });
  BodyBudget& unread = server.server().core().unread_answers();
  std::string requests;
  for (int i = 0; i < 16; ++i) requests += "GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::vector<std::unique_ptr<Client>> deaf;
  for (int i = 0; i < 12; ++i) {
    deaf.push_back(std::make_unique<Client>(server.port()));
    deaf.back()->set_receive_buffer(4096);
    ASSERT_TRUE(deaf.back()->send(requests));
    ASSERT_TRUE(deaf.back()->read_until("\r\n"));
  }
  EXPECT_TRUE(comes_true([&] { return get(server.port(), "/docs").status == 429; }));
  EXPECT_EQ(get(server.port(), "/livez").status, 200);
  EXPECT_LE(unread.bytes(), 1'000'000U) << "half, and an answer of each";
  // Another's own unread answers do not have it refused.
  Client other(server.port(), kOther);
  EXPECT_EQ(other.get("/docs")->status, 200);
  deaf.clear();
  EXPECT_TRUE(comes_true([&] { return unread.bytes() == 0; }));
}

/// 400 KB of all bodies.
void hold_few_bodies(ServerSettings& settings) {
  settings.http.body_bytes = 100'000;
  settings.bodies_bytes_max = 1;
}

TEST(ClientShares, RequestsBehindOnesThatAreAnsweredCountAmongBodies) {
  TinyServer server(hold_few_bodies);
  const BodyBudget& bodies = server.server().core().bodies();
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < 24; ++i) {
    many.push_back(std::make_unique<Client>(server.port()));
    ASSERT_TRUE(many.back()->send("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    ASSERT_TRUE(many.back()->read_until("data: "));
    ASSERT_TRUE(many.back()->send(std::string(60'000, 'G')));
  }
  EXPECT_TRUE(comes_true([&] { return bodies.bytes() >= 200'000; }));
  Client other(server.port(), kOther);
  const std::optional<Reply> reply =
      other.post("/tokenize", R"({"prompt":"a","ignored":")" + std::string(30'000, 'x') + "\"}");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
  many.clear();
  EXPECT_TRUE(comes_true([&] { return bodies.bytes() == 0; }));
}

TEST(ClientShares, HeadsUnderWayCountAmongBodies) {
  TinyServer server(hold_few_bodies);
  const BodyBudget& bodies = server.server().core().bodies();
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < 24; ++i) {
    many.push_back(std::make_unique<Client>(server.port()));
    ASSERT_TRUE(many.back()->send("GET /livez HTTP/1.1\r\nCookie: " + std::string(30'000, 'x')));
  }
  EXPECT_TRUE(comes_true([&] { return server.counters().rejected_full.load() > 0; }));
  EXPECT_LE(bodies.bytes(), 400'000U);
  EXPECT_EQ(get(server.port(), "/livez").status, 200);  // its own head is small
  many.clear();
  EXPECT_TRUE(comes_true([&] { return bodies.bytes() == 0; }));
  Client again(server.port());
  ASSERT_TRUE(again.send("GET /livez HTTP/1.1\r\nCookie: " + std::string(30'000, 'x') +
                         "\r\nHost: localhost\r\n\r\n"));
  const std::optional<Reply> reply = again.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_TRUE(comes_true([&] { return bodies.bytes() == 0; }));
}

TEST(ClientShares, WhatALiveRequestKeepsCountsUntilItsEnd) {
  TinyServer server;
  const BodyBudget& bodies = server.server().core().bodies();
  Client client(server.port());
  ASSERT_TRUE(
      client.send(request_of("/v1/responses", R"({"input":"hi","stream":true,"metadata":{"a":")" +
                                                  std::string(1'000'000, 'x') + R"("}})")));
  ASSERT_TRUE(client.read_until("response.in_progress"));
  EXPECT_GE(bodies.bytes(), 1'000'000U);
  client.reset();
  EXPECT_TRUE(comes_true([&] { return bodies.bytes() == 0; }));
}

TEST(ClientShares, WholeAnswersUnderWayCountAsThoseThatNobodyReads) {
  TinyServer server([](ServerSettings& settings) {
    settings.http.body_bytes = 50'000;
    settings.bodies_bytes_max = 1;  // 200 KB
  });
  const std::string body =
      R"({"model":"tiny","prompt":"a","max_tokens":400,"ignore_eos":true,"logprobs":20)";
  const Reply refused = post(server.port(), "/v1/completions", body + "}");
  EXPECT_EQ(refused.status, 400) << refused.body.substr(0, 300);
  EXPECT_EQ(text_at(refused.json(), "error.code"), "answer_too_large");
  EXPECT_EQ(post(server.port(), "/v1/completions", body + R"(,"stream":true})").status, 200);
  EXPECT_TRUE(comes_true([&] { return server.server().core().unread_answers().bytes() == 0; }));
}

TEST(ClientShares, ConnectionsOfOneAddressLeaveSomeForAnother) {
  TinyServer server([](ServerSettings& settings) { settings.connections_max = 3; });
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < 8; ++i) many.push_back(std::make_unique<Client>(server.port()));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(many[static_cast<std::size_t>(i)]->get("/livez")->status, 200);
  EXPECT_TRUE(many.back()->sees_end());
  Client other(server.port(), kOther);
  const std::optional<Reply> reply = other.get("/livez");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(server.counters().connections_refused.load(), 5U);
  many.clear();
  EXPECT_TRUE(comes_true([&] { return server.counters().connections_live.load() == 1; }));
  EXPECT_EQ(get(server.port(), "/livez").status, 200);
}

TEST(ClientShares, RequestsInOneWriteGiveWayToAnotherConnection) {
  constexpr int kRequests = 1000;
  TinyServer server([](ServerSettings& settings) { settings.io_threads = 1; });
  Client other(server.port(), kOther);
  ASSERT_EQ(other.get("/livez")->status, 200);
  Client many(server.port());
  ASSERT_EQ(many.get("/livez")->status, 200);
  std::string requests;
  for (int i = 0; i < kRequests; ++i)
    requests += "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  // Again where this thread was kept waiting until all were answered; from one that does not give
  // way the other gets its answer behind all of them each time.
  bool gave_way = false;
  for (int round = 1; round <= 20 && !gave_way; ++round) {
    ASSERT_TRUE(many.send(requests));
    ASSERT_TRUE(many.read_until("HTTP/1.1 200 OK", (round - 1) * kRequests + 1));  // the first
    ASSERT_EQ(other.get("/livez")->status, 200);
    const std::uint64_t answered = server.server().core().responses().at("/metrics")[0];
    gave_way = answered <= static_cast<std::uint64_t>((round - 1) * kRequests + kRequests / 2);
    EXPECT_TRUE(many.read_until("HTTP/1.1 200 OK", round * kRequests)) << "none is lost";
  }
  EXPECT_TRUE(gave_way);
}

/// It was read whole and waited for earlier answers to be read; then nobody took it up (408).
TEST(ClientShares, ARequestBehindAnUnreadAnswerIsAnswered) {
  TinyServer server([](ServerSettings& settings) { settings.io_threads = 1; });
  std::string ids = "1525";  // the longest token: 4 MB of text
  for (int i = 1; i < 200'000; ++i) ids += ",1525";
  Client client(server.port());
  ASSERT_TRUE(client.send(request_of("/detokenize", R"({"tokens":[)" + ids + "]}")));
  ASSERT_TRUE(client.read_until("\r\n"));
  ASSERT_TRUE(client.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  Client other(server.port(), kOther);  // behind whose answers the request has been read
  for (int i = 0; i < 3; ++i) ASSERT_EQ(other.get("/livez")->status, 200);
  ASSERT_EQ(client.read_reply()->status, 200);
  const std::optional<Reply> second = client.read_reply();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->status, 200) << second->body;
}

TEST(ClientShares, ManyConnectionsGiveWayToAnotherAddress) {
  constexpr int kConnections = 300;
  TinyServer server([](ServerSettings& settings) { settings.io_threads = 1; });
  Client other(server.port(), kOther);
  ASSERT_EQ(other.get("/livez")->status, 200);
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < kConnections; ++i) many.push_back(std::make_unique<Client>(server.port()));
  // Again, as above.
  bool gave_way = false;
  for (int round = 1; round <= 20 && !gave_way; ++round) {
    for (const auto& one : many)
      ASSERT_TRUE(one->send("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    ASSERT_EQ(other.get("/livez")->status, 200);
    const std::uint64_t answered = server.server().core().responses().at("/metrics")[0];
    gave_way =
        answered <= static_cast<std::uint64_t>((round - 1) * kConnections + kConnections / 2);
    for (const auto& one : many) ASSERT_EQ(one->read_reply(true)->status, 200);
  }
  EXPECT_TRUE(gave_way);
}

/// Moves a little at each look, and a look takes time: a tick that asks for it lasts longer than a
/// thread of a busy machine waits.
struct SlowClock final : Clock {
  std::int64_t now_us() const override {
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return moved_us.fetch_add(50);
  }
  mutable std::atomic<std::int64_t> moved_us = 0;
  std::atomic<bool> slow = false;
};

TEST(ClientShares, ATickOfManyConnectionsGivesWayToAnotherAddress) {
  constexpr int kFeeds = 300;
  constexpr std::int64_t kFeedMs = 60'000;
  SlowClock clock;
  TinyServer server(
      [](ServerSettings& settings) {
        settings.io_threads = 1;
        settings.time.feed_ms = kFeedMs;
      },
      tiny_runtime(), clock);
  Client other(server.port(), kOther);
  std::vector<std::unique_ptr<Client>> feeds;
  for (int i = 0; i < kFeeds; ++i) {
    feeds.push_back(std::make_unique<Client>(server.port()));
    ASSERT_TRUE(feeds.back()->send("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    ASSERT_TRUE(feeds.back()->read_until("data: "));
  }
  clock.slow = true;
  const std::atomic<std::uint64_t>& sent = server.counters().bytes_sent;
  // Again, as above. Each round the next event is due for all at once.
  bool gave_way = false;
  for (int round = 1; round <= 20 && !gave_way; ++round) {
    ASSERT_EQ(other.get("/livez")->status, 200);  // which may be counted a little later
    const std::uint64_t before = sent;
    clock.moved_us += kFeedMs * 1000;
    ASSERT_TRUE(comes_true([&] { return sent - before > 1000; }));
    ASSERT_EQ(other.get("/livez")->status, 200);
    const std::uint64_t meanwhile = sent - before;
    for (const auto& feed : feeds) ASSERT_TRUE(feed->read_until("data: ", round + 1));
    gave_way = meanwhile < (sent - before) / 2;
  }
  EXPECT_TRUE(gave_way);
}

TEST(ClientShares, RequestsBeforeAHalfCloseAreAnswered) {
  constexpr int kRequests = 40;
  TinyServer server;
  // The second's answers, 4 MB in all, wait for their reader.
  for (const std::string path : {"/livez", "/openapi.json"}) {
    std::string requests;
    for (int i = 0; i < kRequests; ++i)
      requests += "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (const char* more : {"", "GET /liv"}) {
      Client client(server.port());
      ASSERT_TRUE(client.send(requests + more));
      client.finish_sending();
      int answered = 0;
      while (const std::optional<Reply> reply = client.read_reply())
        answered += reply->status == 200;
      EXPECT_EQ(answered, kRequests) << path;
    }
  }
}

TEST(ClientShares, AFullPoolRefusesAndLeavesTheConnectionsThreadFree) {
  TinyServer server([](ServerSettings& settings) { settings.text_threads = 1; });
  constexpr std::uint64_t kLoopback = std::uint64_t{1} << 32U | 0x7f000001U;
  WorkPool& pool = server.server().core().pool();
  std::promise<void> begin;
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  ASSERT_TRUE(pool.submit(kLoopback, [&begin, ended] {
    begin.set_value();
    ended.wait();
  }));
  begin.get_future().wait();
  for (int i = 0; i < 10'000 && pool.submit(kLoopback, [] {}); ++i) {
  }
  const std::string large = R"({"prompt":")" + std::string(5000, 'x') + "\"}";
  EXPECT_EQ(post(server.port(), "/tokenize", large).status, 503);
  Client other(server.port(), kOther);
  EXPECT_EQ(other.post("/tokenize", large)->status, 200);
  end.set_value();
  EXPECT_TRUE(comes_true([&] { return post(server.port(), "/tokenize", large).status == 200; }));
}

}  // namespace
}  // namespace koho::server
