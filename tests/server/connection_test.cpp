// SPDX-License-Identifier: Apache-2.0
// Connections: clients that leave, are slow or do not read; aborts; the full queue; the drain.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "client.h"
#include "raw_requests.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

TEST(Connection, FreesThePagesOfAClientThatLeft) {
  TinyServer& server = shared_server();
  ASSERT_TRUE(server.becomes_idle());  // the tests before this one share it
  const Statistics before = server.serving().engine.statistics();
  for (const bool abrupt : {false, true}) {
    for (const bool streams : {false, true}) {
      Client client(server.port());
      const char* path = kBothPaths[static_cast<int>(abrupt == streams)];
      ASSERT_TRUE(client.send(request_of(endless(streams ? R"(,"stream":true)" : ""), path)));
      ASSERT_TRUE(comes_true([&] { return server.serving().engine.statistics().running > 0; }));
      if (streams) {
        ASSERT_TRUE(client.read_until("data: "));
      }
      if (abrupt) {
        client.reset();
      } else {
        client.close();
      }
      EXPECT_TRUE(server.becomes_idle());
    }
  }
  const Statistics after = server.serving().engine.statistics();
  EXPECT_EQ(after.requests_cancelled, before.requests_cancelled + 4);
  expect_alive(server.port());
}

TEST(Connection, RefusesRequestsWhenTheQueueIsFull) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.sequences = 1, .queue = 1});
  TinyServer server({}, *runtime);
  // Of a list that has no room none begins.
  std::string list = R"({"max_tokens":1,"prompt":["a")";
  for (int i = 0; i < 50; ++i) list += R"(,"a")";
  EXPECT_EQ(post(server.port(), "/v1/completions", list + "]}").status, 429);
  EXPECT_EQ(server.serving().engine.statistics().requests_accepted, 0);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    ASSERT_TRUE(clients.back()->send(request_of(endless(R"(,"stream":true)"))));
    // The engine counts the second one, which waits.
    ASSERT_TRUE(comes_true([&] { return server.serving().engine.statistics().requests_live > i; }));
  }
  for (const char* path : kBothPaths) {
    const Reply refused = post(server.port(), path, endless());
    EXPECT_EQ(refused.status, 429) << refused.body;
    EXPECT_EQ(text_at(refused.json(), "error.code"), "rate_limit_exceeded");
    EXPECT_EQ(text_at(refused.json(), "error.type"), "rate_limit_error");
    EXPECT_TRUE(refused.fields.contains("retry-after"));
  }
  const Reply overloaded =
      post(server.port(), "/v1/messages",
           R"({"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(overloaded.status, 529) << overloaded.body;
  EXPECT_EQ(text_at(overloaded.json(), "error.type"), "overloaded_error");
  EXPECT_TRUE(overloaded.fields.contains("retry-after"));
  clients.clear();
  EXPECT_TRUE(server.becomes_idle());
  expect_alive(server.port());
}

TEST(Connection, SendsAnErrorAfterTheFirstByteAsAnEvent) {
  TinyServer server;
  for (const char* path : kBothPaths) {
    Client client(server.port());
    ASSERT_TRUE(client.send(request_of(endless(R"(,"stream":true)"), path)));
    ASSERT_TRUE(client.read_until("data: "));
    const std::size_t id = client.pending().find("cmpl-");
    ASSERT_NE(id, std::string::npos);
    EXPECT_EQ(post(server.port(), "/abort_request",
                   R"({"request_id":")" + client.pending().substr(id + 5, 32) + "\"}")
                  .status,
              200);
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    const std::vector<std::string> events = reply->events();
    ASSERT_GE(events.size(), 2U);
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(text_at(*chat::parse_json(events[events.size() - 2]), "error.code"), "cancelled");
  }
  EXPECT_TRUE(server.becomes_idle());
  EXPECT_EQ(post(server.port(), "/abort_request", R"({"request_id":null,"rid":"nobody"})").status,
            404);
  expect_alive(server.port());
}

TEST(Connection, ARequestHasTheIdItsClientGaveIt) {
  TinyServer server;
  for (const char* path : kBothPaths) {
    SCOPED_TRACE(path);
    Client named(server.port());
    ASSERT_TRUE(named.send(request_of(endless(R"(,"stream":true,"request_id":"mine/1")"), path)));
    ASSERT_TRUE(named.read_until("cmpl-mine/1\""));
    // The id is in use: a second request gets another one and reports it.
    Client second(server.port());
    ASSERT_TRUE(second.send(request_of(endless(R"(,"stream":true,"rid":"mine/1")"), path)));
    ASSERT_TRUE(second.read_until("cmpl-mine/1-"));
    EXPECT_EQ(post(server.port(), "/abort_request", R"({"request_id":"mine/1"})").status, 200);
    const std::optional<Reply> reply = named.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->fields.at("x-request-id"), "mine/1");
    EXPECT_NE(reply->body.find("cancelled"), std::string::npos);
    ASSERT_TRUE(comes_true([&] {
      return post(server.port(), "/abort_request", R"({"request_id":"mine/1"})").status == 404;
    }));
    const std::size_t name = second.pending().find("cmpl-mine/1-") + 5;
    EXPECT_EQ(post(server.port(), "/abort_request",
                   R"({"rid":"chatcmpl-)" + second.pending().substr(name, 15) + "\"}")
                  .status,
              200);
    ASSERT_TRUE(second.read_reply());
    EXPECT_TRUE(server.becomes_idle());
    const std::string body =
        R"({"model":"tiny","prompt":"hi","messages":[{"role":"user","content":"hi"}],)"
        R"("max_tokens":2,"request_id":"body"})";
    // The header overrides the body.
    const Reply both = post(server.port(), path, body, "X-Request-Id: head\r\n");
    EXPECT_EQ(both.fields.at("x-request-id"), "head");
    EXPECT_TRUE(text_at(both.json(), "id").ends_with("cmpl-head")) << both.body;
    EXPECT_EQ(get(server.port(), "/debug/cache/head").status, 200);
    EXPECT_EQ(get(server.port(), "/debug/cache/" + text_at(both.json(), "id")).status, 200);
    EXPECT_EQ(post(server.port(), path, body).fields.at("x-request-id"), "body");
    for (const char* bad : {R"("a b")", R"("")", R"("a\"b")", "7"})
      EXPECT_EQ(post(server.port(), path, endless(std::string(R"(,"rid":)") + bad)).status, 400)
          << bad;
  }
}

/// Blocks both threads of both pools, one of which is for other clients, until release(). Each pool
/// is held by clients of its own: one whose work ends while it has more goes behind the others.
class HeldPools {
 public:
  explicit HeldPools(Core& core) {
    static std::uint64_t client = 0;
    const auto wait = [released = released_->get_future().share(), held = held_] {
      ++*held;
      released.wait();
    };
    for (WorkPool* pool : {&core.pool(), &core.grammar_pool()})
      for (int thread = 0; thread < 2; ++thread) EXPECT_TRUE(pool->submit(client++, wait));
    EXPECT_TRUE(comes_true([&] { return held_->load() == 4; }));
  }
  ~HeldPools() { release(); }
  void release() {
    if (!std::exchange(is_released_, true)) released_->set_value();
  }

 private:
  std::shared_ptr<std::atomic<int>> held_ = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::promise<void>> released_ = std::make_shared<std::promise<void>>();
  bool is_released_ = false;
};

TEST(Connection, ARequestIsAbortedByTheNameInItsBodyBeforeItRuns) {
  TinyServer server([](ServerSettings& settings) { settings.text_threads = 1; });
  const auto abort = [&](const std::string& name) {
    const Reply reply = post(server.port(), "/abort_request", R"({"request_id":")" + name + "\"}");
    return reply.status == 200 ? text_at(reply.json(), "status") : std::to_string(reply.status);
  };
  const std::string long_text(server.server().core().settings().inline_body_bytes, 'x');
  for (const auto& [fields, status] :
       // First case: the body waits to be parsed. Second: the grammar waits to be compiled.
       {std::pair{R"(,"user":"u","ignored":")" + long_text + '"', "pending"},
        std::pair{std::string(R"(,"structured_outputs":{"regex":"waits{7}"})"), "aborted"}}) {
    SCOPED_TRACE(status);
    HeldPools held(server.server().core());
    Client client(server.port());
    ASSERT_TRUE(client.send(request_of(endless(R"(,"request_id":"mine")" + fields))));
    std::string said;
    ASSERT_TRUE(comes_true([&] { return (said = abort("mine")) != "404"; }));
    EXPECT_TRUE(said == status || said == "pending") << said;
    held.release();
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(text_at(reply->json(), "error.code"), "cancelled") << reply->body;
    EXPECT_EQ(reply->fields.at("x-request-id"), "mine");
    EXPECT_TRUE(server.becomes_idle());
    EXPECT_EQ(abort("mine"), "404");
    // A later request may use the id again.
    EXPECT_EQ(post(server.port(), kBothPaths[0],
                   R"({"model":"tiny","prompt":"hi","messages":[{"role":"user","content":"hi"}],)"
                   R"("max_tokens":1,"request_id":"mine"})")
                  .status,
              200);
  }
}

TEST(Connection, NoGrammarIsCompiledForAClientThatLeft) {
  TinyServer server([](ServerSettings& settings) { settings.text_threads = 1; });
  const auto compiled = [] { return tiny_runtime().grammars().statistics().compiled; };
  const auto ended = [&] { return server.server().core().request_log().rows().size(); };
  const std::uint64_t before = compiled();
  for (const bool leaves : {true, false}) {
    HeldPools held(server.server().core());
    const std::size_t ended_before = ended();
    Client client(server.port());
    ASSERT_TRUE(client.send(
        request_of(endless(R"(,"request_id":"mine","structured_outputs":{"regex":"left{7}"})"))));
    ASSERT_TRUE(comes_true([&] { return server.counters().requests_live == 1; }));
    if (leaves) {
      client.close();
      ASSERT_TRUE(comes_true([&] { return ended() > ended_before; }));
    } else {
      const auto abort = [&] {
        return post(server.port(), "/abort_request", R"({"request_id":"mine"})").status;
      };
      ASSERT_TRUE(comes_true([&] { return abort() == 200; }));
    }
    held.release();
    ASSERT_TRUE(server.becomes_idle());
    EXPECT_EQ(compiled(), before);
  }
}

TEST(Connection, AClientThatLeftIsNoticedBehindPipelinedRequests) {
  TinyServer server;
  ASSERT_TRUE(server.becomes_idle());  // the tests before this one share its engine
  // The server reads no more than some of what is pipelined behind a running request.
  for (const std::size_t bytes : {150'000UL, 300'000UL}) {
    SCOPED_TRACE(bytes);
    Client client(server.port());
    std::string pipelined;
    while (pipelined.size() < bytes) pipelined += "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const std::uint64_t before = server.serving().engine.statistics().requests_cancelled;
    ASSERT_TRUE(client.send(request_of(endless()) + pipelined));
    ASSERT_TRUE(comes_true([&] { return server.serving().engine.statistics().running > 0; }));
    // With more than the socket takes, a FIN would wait behind it.
    if (bytes == 150'000) {
      client.close();
    } else {
      client.reset();
    }
    ASSERT_TRUE(server.becomes_idle());
    EXPECT_EQ(server.serving().engine.statistics().requests_cancelled, before + 1);
  }
}

/// Little is made before a client that does not read is noticed, however slow the machine: the
/// kernel ends the connection after 25 s.
void set_small_buffers(ServerSettings& settings) {
  settings.buffer_bytes_max = 4096;
  settings.socket_send_bytes = 4096;
}

TEST(Connection, ASlowReaderPausesItsRequestAndNoOther) {
  TinyServer server(set_small_buffers);
  Client slow(server.port());
  slow.set_receive_buffer(4096);
  const std::uint64_t before = server.serving().engine.statistics().pauses;
  // Large events, which quickly fill the kernel's buffers.
  ASSERT_TRUE(slow.send(request_of(
      R"({"model":"tiny","prompt":"Once upon a time","max_tokens":200,"ignore_eos":true,)"
      R"("stream":true,"logprobs":20})")));
  ASSERT_TRUE(slow.read_until("data: "));
  ASSERT_TRUE(comes_true([&] { return server.serving().engine.statistics().pauses > before; }));
  expect_alive(server.port());
  slow.set_receive_buffer(1 << 20);
  const std::optional<Reply> reply = slow.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->events().back(), "[DONE]");
  EXPECT_GT(server.serving().engine.statistics().pauses, before);
}

TEST(Connection, AClientThatDoesNotReadIsDisconnected) {
  TinyServer server([](ServerSettings& settings) {
    set_small_buffers(settings);
    settings.time.write_stall_ms = 100;
  });
  Client slow(server.port());
  slow.set_receive_buffer(4096);
  ASSERT_TRUE(slow.send(request_of(endless(R"(,"stream":true,"logprobs":20,"n":4)"))));
  EXPECT_TRUE(comes_true([&] { return server.counters().write_stalls.load() == 1; }));
  EXPECT_TRUE(server.becomes_idle());
  expect_alive(server.port());
}

TEST(Connection, SlowRequestsAreRefused) {
  // One limit a server: each would end the other clients, where they are kept waiting.
  const std::pair<std::int64_t TimeLimits::*, const char*> cases[] = {
      {&TimeLimits::head_ms, "GET /health HTTP/1.1\r\nHo"},
      {&TimeLimits::body_grace_ms,
       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
       "application/json\r\nContent-Length: 100000\r\n\r\n{"}};
  for (const auto& one : cases) {
    TinyServer server([&](ServerSettings& settings) { settings.time.*one.first = 100; });
    Client client(server.port());
    ASSERT_TRUE(client.send(one.second));
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply) << one.second;
    EXPECT_EQ(reply->status, 408) << one.second;
    EXPECT_TRUE(client.sees_end());
    EXPECT_EQ(server.counters().head_timeouts.load(), 1U);
    expect_alive(server.port());
  }
  TinyServer server([](ServerSettings& settings) { settings.time.idle_ms = 100; });
  Client idle(server.port());
  EXPECT_TRUE(idle.sees_end());
  EXPECT_EQ(server.counters().head_timeouts.load(), 0U);
}

TEST(Connection, AQuietStreamGetsKeepAlives) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.sequences = 1, .queue = 4});
  TinyServer server([](ServerSettings& settings) { settings.time.ping_ms = 20; }, *runtime);
  Client running(server.port());
  ASSERT_TRUE(running.send(request_of(endless(R"(,"stream":true)"))));
  ASSERT_TRUE(running.read_until("data: "));
  Client queued(server.port());
  ASSERT_TRUE(queued.send(request_of(endless(R"(,"stream":true)"))));
  EXPECT_TRUE(queued.read_until(": ping\n\n"));  // before it has a token
  running.close();
  queued.close();
  EXPECT_TRUE(server.becomes_idle());
}

TEST(Connection, DrainsBeforeTheEnd) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.sequences = 2});
  TinyServer server({}, *runtime);
  Client finishing(server.port());
  Client endless_one(server.port());
  ASSERT_TRUE(finishing.send(request_of(
      R"({"model":"tiny","prompt":"hi","max_tokens":20,"ignore_eos":true,"stream":true})")));
  ASSERT_TRUE(endless_one.send(request_of(endless(R"(,"stream":true)"))));
  ASSERT_TRUE(finishing.read_until("data: "));
  ASSERT_TRUE(endless_one.read_until("data: "));
  std::thread draining([&] { server.server().drain(0); });
  const std::optional<Reply> done = finishing.read_reply();
  const std::optional<Reply> cut = endless_one.read_reply();
  draining.join();
  ASSERT_TRUE(done);
  ASSERT_TRUE(cut);
  EXPECT_EQ(done->events().back(), "[DONE]");
  EXPECT_EQ(cut->events().back(), "[DONE]");
  EXPECT_EQ(text_at(*chat::parse_json(cut->events()[cut->events().size() - 2]), "error.code"),
            "server_shutting_down");
  const Reply refused = post(server.port(), kCompletionsPath, endless());
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.fields.contains("retry-after"));
  EXPECT_EQ(get(server.port(), "/readyz").status, 503);
  EXPECT_EQ(text_at(get(server.port(), "/readyz").json(), "status"), "draining");
  EXPECT_EQ(get(server.port(), "/livez").status, 200);
}

/// With a request whose prompt's log probabilities are asked for, behind one that never ends.
struct ScoringServer {
  struct MovedClock final : Clock {
    std::int64_t now_us() const override { return kSteadyClock.now_us() + moved_us; }
    std::atomic<std::int64_t> moved_us{0};
  };

  /// False: a step did not come.
  bool begins(std::string_view more, int tokens = 151) {
    std::string body = R"({"prompt":[9)";
    for (int i = 1; i < tokens; ++i) body += ",9";
    body.append(R"(],"max_tokens":1,"echo":true,"logprobs":0)").append(more).append("}");
    const auto live = [this](int requests) {
      return comes_true(
          [&] { return server.serving().engine.statistics().requests_live == requests; });
    };
    return running.send(request_of(endless(R"(,"stream":true)"))) && live(1) &&
           scored.send(request_of(body)) && live(2);
  }

  std::unique_ptr<Runtime> runtime = start_tiny_runtime({.sequences = 1, .queue = 4});
  MovedClock clock;
  TinyServer server{[](ServerSettings& settings) { settings.time.ping_ms = 20; }, *runtime, clock};
  Client running{server.port()};
  Client scored{server.port()};
};

TEST(Connection, APromptThatIsScoredInPartsHasOneDeadline) {
  ScoringServer scoring;
  ASSERT_TRUE(scoring.begins(R"(,"timeout":600)"));
  // The engine's clock does not reach it.
  scoring.clock.moved_us = 600'000'000;
  scoring.running.close();
  const std::optional<Reply> reply = scoring.scored.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 408) << reply->body;
  EXPECT_EQ(scoring.server.counters().deadlines_passed.load(), 1U);
}

TEST(Connection, PingsAStreamWhosePromptIsScored) {
  for (const char* ends : {"answer", "error"}) {
    SCOPED_TRACE(ends);
    ScoringServer scoring;
    ASSERT_TRUE(scoring.begins(R"(,"stream":true,"timeout":600)"));
    ASSERT_TRUE(scoring.scored.read_until(": ping\n\n"));
    const bool fails = ends == std::string_view("error");
    if (fails) scoring.clock.moved_us = 600'000'000;
    scoring.running.close();
    const std::optional<Reply> reply = scoring.scored.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << reply->body;
    const std::vector<std::string> events = reply->events();
    ASSERT_GE(events.size(), 2U) << reply->body;
    EXPECT_EQ(events.back(), "[DONE]");
    const chat::Json first = *chat::parse_json(events.front());
    if (fails) {
      EXPECT_EQ(text_at(first, "error.code"), "timeout");
    } else {
      EXPECT_EQ(at(first, "choices.0.logprobs.token_logprobs").items.size(), 151U);
    }
  }
}

TEST(Connection, APromptThatIsScoredInPartsKeepsItsPlacesWhileOthersFillTheQueue) {
  ScoringServer scoring;
  ASSERT_TRUE(scoring.begins(R"(,"n":4)", 3));  // one part, and then the choices
  Counters& counters = scoring.server.counters();
  std::vector<std::unique_ptr<Client>> others;
  for (int live = 3; counters.rejected_full.load() == 0; ++live) {
    others.push_back(
        std::make_unique<Client>(scoring.server.port(), "127.0.0." + std::to_string(live)));
    ASSERT_TRUE(others.back()->send(request_of(endless(R"(,"n":2)"))));
    ASSERT_TRUE(comes_true([&] {
      return scoring.server.serving().engine.statistics().requests_live == live ||
             counters.rejected_full.load() > 0;
    }));
  }
  scoring.running.close();
  EXPECT_TRUE(comes_true([&] { return counters.requests_scoring.load() == 0; }));
  for (const std::unique_ptr<Client>& client : others) client->close();
  const std::optional<Reply> reply = scoring.scored.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
  EXPECT_EQ(at(reply->json(), "choices").items.size(), 4U);
}

TEST(Connection, DrainsAPromptThatIsScoredInParts) {
  ScoringServer scoring;
  ASSERT_TRUE(scoring.begins(""));
  std::thread draining([&] { scoring.server.server().drain(testing::kPatienceUs.count()); });
  const bool drains =
      comes_true([&] { return get(scoring.server.port(), "/readyz").status == 503; });
  scoring.running.close();
  const std::optional<Reply> reply = scoring.scored.read_reply();
  draining.join();
  EXPECT_TRUE(drains);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
}

TEST(Connection, DrainsAnAnswerThatIsBeingRead) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.sequences = 1});
  auto server = std::make_unique<TinyServer>(set_small_buffers, *runtime);
  const std::uint16_t port = server->port();
  Client client(port);
  client.set_receive_buffer(4096);
  std::string ids = "1525";  // the longest token: 100 KB of text
  for (int i = 1; i < 5'000; ++i) ids += ",1525";
  ASSERT_TRUE(client.send(request_of(R"({"tokens":[)" + ids + "]}", "/detokenize")));
  ASSERT_TRUE(client.read_until("\r\n"));
  std::thread ending([&] {
    server->server().drain(testing::kPatienceUs.count());
    server.reset();
  });
  const bool drains = comes_true([&] { return get(port, "/readyz").status != 200; });
  client.set_receive_buffer(1 << 20);
  const std::optional<Reply> reply = client.read_reply();
  ending.join();
  EXPECT_TRUE(drains);
  ASSERT_TRUE(reply) << "cut";
  EXPECT_EQ(reply->status, 200) << reply->body;
}

}  // namespace
}  // namespace koho::server
