// SPDX-License-Identifier: Apache-2.0
// What happens between sockets: broken HTTP, clients that leave, dawdle or do not read, and the
// server's own end. With bad_input_test.cpp: the rows of bad input.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

constexpr const char* kPath = "/v1/completions";

constexpr const char* kBothPaths[] = {kPath, "/v1/chat/completions"};

/// Either API takes it: what the other one reads is an unknown field.
std::string endless(const std::string& more = "") {
  return R"({"model":"tiny","prompt":"Once upon a time","messages":[{"role":"user","content":"a"}],)"
         R"("max_tokens":2000,"ignore_eos":true)" +
         more + "}";
}

std::string request_of(const std::string& body, const char* path = kPath) {
  return std::string("POST ") + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

void expect_alive(std::uint16_t port) {
  for (const char* path : kBothPaths)
    EXPECT_EQ(post(port, path,
                   R"({"model":"tiny","prompt":"hi","messages":[{"role":"user","content":"hi"}],)"
                   R"("max_tokens":2})")
                  .status,
              200);
}

/// Waits for it, far longer than anything takes.
bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// Sends bytes that are no good request: an answer of that status, and the connection's end.
void expect_refusal(const std::string& bytes, int status) {
  SCOPED_TRACE(bytes.substr(0, 120));
  Client client(shared_server().port());
  client.send(bytes);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, status) << reply->body;
  EXPECT_TRUE(client.sees_end());
  expect_alive(shared_server().port());
}

TEST(Connection, Row04LargeBodies) {
  TinyServer server([](ServerSettings& settings) { settings.http.body_bytes = 10'000; });
  const std::string large(20'000, ' ');
  {
    Client client(server.port());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 413);
    EXPECT_EQ(text_at(reply->json(), "error.code"), "request_too_large");
    EXPECT_TRUE(client.sees_end());
  }
  {
    Client client(server.port());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("4e20\r\n" + large + "\r\n0\r\n\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 413);
  }
  expect_alive(server.port());
}

TEST(Connection, Row05LargeHeads) {
  expect_refusal(
      "GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + std::string(40'000, 'a') + "\r\n\r\n",
      431);
  std::string fields;
  for (int i = 0; i < 80; ++i) fields += "F" + std::to_string(i) + ": 1\r\n";
  expect_refusal("GET /health HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n", 431);
  expect_refusal("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414);
  expect_refusal("GET /" + std::string(50'000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414);
}

TEST(Connection, Row06Smuggling) {
  const std::string line = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  expect_refusal(line + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  expect_refusal(line + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400);
  expect_refusal(line + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400);
  expect_refusal(line + "Content-Length: -5\r\n\r\n", 400);
  expect_refusal(line + "Content-Length: 5x\r\n\r\nhello", 400);
  expect_refusal(line + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400);
  expect_refusal(line + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400);
  expect_refusal(line + "Transfer-Encoding: chunked1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400);
  expect_refusal(line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                 400);
  expect_refusal("POST /generate HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  expect_refusal(line + "A: 1\r\n folded\r\n\r\n", 400);
  expect_refusal("GET /health HTTP/1.1\nHost: localhost\n\n", 400);
  expect_refusal("GET /health HTTP/1.1\r\nHost: localhost\nA: 1\r\n\r\n", 400);
  expect_refusal("GET /health HTTP/1.1\r\nHo st: x\r\n\r\n", 400);
  expect_refusal("GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400);
}

TEST(Connection, Row41Expect) {
  Client client(shared_server().port());
  const std::string body = R"({"model":"tiny","prompt":"hi","max_tokens":2})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(client.read_until("100 Continue\r\n\r\n"));
  client.send(body);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(post(shared_server().port(), kPath, body, "Expect: magic\r\n").status, 417);
}

TEST(Connection, Row42OtherProtocols) {
  {
    Client client(shared_server().port());
    client.send("GET /health HTTP/1.0\r\n\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_TRUE(client.sees_end());
  }
  expect_refusal("GET /health\r\n", 400);
  expect_refusal("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
  expect_refusal(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400);
  expect_refusal("GET /health HTTP/3\r\n\r\n", 400);
}

TEST(Connection, Row42StreamsToHttp10EndWithTheConnection) {
  Client client(shared_server().port());
  const std::string body =
      R"({"model":"tiny","prompt":"hi","max_tokens":4,"ignore_eos":true,"stream":true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->fields.contains("transfer-encoding"));
  ASSERT_FALSE(reply->events().empty());
  EXPECT_EQ(reply->events().back(), "[DONE]");
}

TEST(Connection, Row43Hosts) {
  const std::uint16_t port = shared_server().port();
  expect_refusal("GET /health HTTP/1.1\r\n\r\n", 400);
  for (const char* fields :
       {"Host: evil.example\r\n", "Host: localhost\r\nOrigin: http://evil.example\r\n",
        "Host: localhost\r\nOrigin: null\r\n"}) {
    Client client(port);
    client.send(std::string("GET /v1/models HTTP/1.1\r\n") + fields + "\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 403) << fields;
    EXPECT_EQ(text_at(reply->json(), "error.code"), "forbidden_origin");
  }
  for (const char* fields :
       {"Host: localhost:8000\r\n", "Host: 127.0.0.1\r\n", "Host: [::1]:8000\r\n",
        "Host: localhost\r\nOrigin: http://localhost:3000\r\n"}) {
    Client client(port);
    client.send(std::string("GET /v1/models HTTP/1.1\r\n") + fields + "\r\n");
    EXPECT_EQ(client.read_reply()->status, 200) << fields;
  }
  for (const auto& [target, fields, status] :
       {std::tuple{"http://localhost:8000/v1/models", "Host: localhost\r\n", 200},
        std::tuple{"HTTP://127.0.0.1/v1/models?a=b", "Host: evil.example\r\n", 200},
        std::tuple{"http://evil.example/v1/models", "Host: localhost\r\n", 403},
        std::tuple{"/v1/models", "Host: LOCALHOST:8000\r\n", 200},
        std::tuple{"/v1/models", "Host: App.LocalHost\r\nOrigin: http://LocalHost:3\r\n", 200},
        std::tuple{"/v1/models", "Host: LOCALHOST.EXAMPLE\r\n", 403},
        std::tuple{"http://localhost?a=/v1/models", "Host: localhost\r\n", 302},
        std::tuple{"http:///v1/models", "Host: localhost\r\n", 400},
        std::tuple{"http://localhost@evil.example/v1/models", "Host: localhost\r\n", 400},
        std::tuple{"ftp://localhost/v1/models", "Host: localhost\r\n", 400},
        std::tuple{"http://localhost/v1/models", "", 400},
        std::tuple{"/v1/models", "Host: localhost\r\nHost: localhost\r\n", 400}}) {
    Client client(port);
    client.send(std::string("GET ") + target + " HTTP/1.1\r\n" + fields + "\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply) << target;
    EXPECT_EQ(reply->status, status) << target;
  }
  TinyServer open(
      [](ServerSettings& settings) { settings.allowed_origins = {"https://app.example"}; });
  const Reply reply = get(open.port(), "/v1/models", "Origin: https://app.example\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.fields.at("access-control-allow-origin"), "https://app.example");
  Client preflight(open.port());
  preflight.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  const std::optional<Reply> allowed = preflight.read_reply();
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->status, 204);
  EXPECT_EQ(allowed->fields.at("access-control-allow-origin"), "https://app.example");
  EXPECT_NE(allowed->fields.at("access-control-allow-methods").find("POST"), std::string::npos);
  const auto allows = [&](const std::string& asked, const std::string& origin) {
    Client page(open.port());
    page.send("OPTIONS /v1/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
              "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " +
              asked + "\r\n\r\n");
    const std::optional<Reply> told = page.read_reply();
    return told && told->fields.contains("access-control-allow-headers")
               ? ", " + told->fields.at("access-control-allow-headers") + ","
               : std::string();
  };
  const std::string told = allows("x-mine, b@d,content-type", "https://app.example");
  for (const char* name : {"x-mine", "x-stainless-os", "x-stainless-retry-count", "authorization",
                           "anthropic-dangerous-direct-browser-access"})
    EXPECT_NE(told.find(", " + std::string(name) + ","), std::string::npos) << name << told;
  EXPECT_EQ(told.find("b@d"), std::string::npos) << told;
  EXPECT_EQ(told.find("content-type"), told.rfind("content-type")) << told;
  EXPECT_EQ(allows("x-mine", "http://localhost:3000"), "");
  const std::string& exposed = reply.fields.at("access-control-expose-headers");
  for (const char* name : {"x-request-id", "request-id", "retry-after-ms"})
    EXPECT_NE(exposed.find(name), std::string::npos) << name;
}

TEST(Connection, Row36ADisconnectFreesThePages) {
  TinyServer& server = shared_server();
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

TEST(Connection, Row38AFullQueueIsToldSo) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.sequences = 1, .queue = 1});
  TinyServer server({}, *runtime);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    ASSERT_TRUE(clients.back()->send(request_of(endless(R"(,"stream":true)"))));
    // The second one waits: it shows in the engine's count.
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

TEST(Connection, Row37AnErrorAfterTheFirstByteIsAnEvent) {
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
  EXPECT_EQ(post(server.port(), "/abort_request", R"({"request_id":"nobody"})").status, 404);
  expect_alive(server.port());
}

TEST(Connection, ARequestHasTheNameItsClientGaveIt) {
  TinyServer server;
  for (const char* path : kBothPaths) {
    SCOPED_TRACE(path);
    Client named(server.port());
    ASSERT_TRUE(named.send(request_of(endless(R"(,"stream":true,"request_id":"mine/1")"), path)));
    ASSERT_TRUE(named.read_until("cmpl-mine/1\""));
    // The name is taken: a second one has a name of its own, which it tells.
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
    // The head wins over the body.
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

/// Keeps the only thread of a server's pool busy until it is released.
class HeldPool {
 public:
  explicit HeldPool(WorkPool& pool) {
    const auto wait = [released = released_] { released->get_future().wait(); };
    EXPECT_TRUE(pool.submit(wait));
  }
  ~HeldPool() { release(); }
  void release() {
    if (!std::exchange(is_released_, true)) released_->set_value();
  }

 private:
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
       // Its body waits to be read; it is read, its grammar waits to be compiled.
       {std::pair{R"(,"user":"u","ignored":")" + long_text + '"', "pending"},
        std::pair{std::string(R"(,"structured_outputs":{"regex":"a+"})"), "aborted"}}) {
    SCOPED_TRACE(status);
    HeldPool held(server.server().core().pool());
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
    // Who comes later may have the name.
    EXPECT_EQ(post(server.port(), kBothPaths[0],
                   R"({"model":"tiny","prompt":"hi","messages":[{"role":"user","content":"hi"}],)"
                   R"("max_tokens":1,"request_id":"mine"})")
                  .status,
              200);
  }
}

TEST(Connection, ASlowReaderPausesItsRequestAndNoOther) {
  TinyServer server([](ServerSettings& settings) { settings.buffer_bytes_max = 4096; });
  Client slow(server.port());
  slow.set_receive_buffer(4096);
  // Large events: they fill the kernel's buffers soon.
  ASSERT_TRUE(slow.send(request_of(
      R"({"model":"tiny","prompt":"Once upon a time","max_tokens":1000,"ignore_eos":true,)"
      R"("stream":true,"logprobs":20})")));
  const std::uint64_t before = server.serving().engine.statistics().pauses;
  ASSERT_TRUE(slow.read_until("data: "));
  ASSERT_TRUE(comes_true([&] { return server.serving().engine.statistics().pauses > before; }));
  expect_alive(server.port());
  slow.set_receive_buffer(1 << 20);
  const std::optional<Reply> reply = slow.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->events().back(), "[DONE]");
  EXPECT_GT(server.serving().engine.statistics().pauses, before);
}

TEST(Connection, AReaderThatTakesNothingIsGivenUp) {
  TinyServer server([](ServerSettings& settings) {
    settings.buffer_bytes_max = 4096;
    settings.time.write_stall_ms = 100;
  });
  Client slow(server.port());
  slow.set_receive_buffer(4096);
  ASSERT_TRUE(slow.send(request_of(endless(R"(,"stream":true,"logprobs":20,"n":4)"))));
  EXPECT_TRUE(comes_true([&] { return server.counters().write_stalls.load() == 1; }));
  EXPECT_TRUE(server.becomes_idle());
  expect_alive(server.port());
}

TEST(Connection, SlowRequestsAreGivenUp) {
  TinyServer server([](ServerSettings& settings) {
    settings.time.head_ms = 100;
    settings.time.body_grace_ms = 100;
    settings.time.idle_ms = 100;
  });
  Client head(server.port());
  head.send("GET /health HTTP/1.1\r\nHo");
  EXPECT_EQ(head.read_reply()->status, 408);
  EXPECT_TRUE(head.sees_end());
  Client body(server.port());
  body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{");
  EXPECT_EQ(body.read_reply()->status, 408);
  Client idle(server.port());
  EXPECT_TRUE(idle.sees_end());
  EXPECT_EQ(server.counters().head_timeouts.load(), 2U);
  expect_alive(server.port());
}

TEST(Connection, RequestsInOneGoAreAnsweredInTheirOrder) {
  Client client(shared_server().port());
  std::string all;
  for (int i = 0; i < 20; ++i) {
    all += request_of(R"({"model":"tiny","prompt":"hi","max_tokens":)" + std::to_string(i + 1) +
                      R"(,"ignore_eos":true})");
    all += "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 20; ++i) {
    const std::optional<Reply> answer = client.read_reply();
    ASSERT_TRUE(answer);
    EXPECT_EQ(text_at(answer->json(), "usage.completion_tokens"), std::to_string(i + 1));
    const std::optional<Reply> version = client.read_reply();
    ASSERT_TRUE(version);
    EXPECT_EQ(text_at(version->json(), "engine"), "koho");
  }
}

TEST(Connection, BodiesMayComeInChunksAndBytes) {
  Client client(shared_server().port());
  const std::string body = R"({"model":"tiny","prompt":"hi","max_tokens":2})";
  std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char c : body) request += std::string("1\r\n") + c + "\r\n";
  request += "0\r\n\r\n";
  for (const char c : request) ASSERT_TRUE(client.send({&c, 1}));
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
}

TEST(Connection, AQuietStreamIsPinged) {
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
  const Reply refused = post(server.port(), kPath, endless());
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.fields.contains("retry-after"));
  EXPECT_EQ(get(server.port(), "/readyz").status, 503);
  EXPECT_EQ(text_at(get(server.port(), "/readyz").json(), "status"), "draining");
  EXPECT_EQ(get(server.port(), "/livez").status, 200);
}

}  // namespace
}  // namespace koho::server
