// SPDX-License-Identifier: Apache-2.0
// HTTP itself: sizes, request smuggling, other protocols, Host and Origin, pipelining, chunks.
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

TEST(Connection, RefusesLargeBodies) {
  TinyServer server([](ServerSettings& settings) { settings.http.body_bytes = 10'000; });
  const std::string large(20'000, ' ');
  {
    Client client(server.port());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 20000\r\n\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 413);
    EXPECT_EQ(text_at(reply->json(), "error.code"), "request_too_large");
    EXPECT_TRUE(client.sees_end());
  }
  {
    Client client(server.port());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("4e20\r\n" + large + "\r\n0\r\n\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 413);
  }
  expect_alive(server.port());
}

TEST(Connection, RefusesLargeHeads) {
  expect_refusal(
      "GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + std::string(40'000, 'a') + "\r\n\r\n",
      431);
  std::string fields;
  for (int i = 0; i < 80; ++i) fields += "F" + std::to_string(i) + ": 1\r\n";
  expect_refusal("GET /health HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n", 431);
  expect_refusal("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414);
  expect_refusal("GET /" + std::string(50'000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414);
}

TEST(Connection, RefusesRequestSmuggling) {
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

TEST(Connection, AnswersExpect100Continue) {
  Client client(shared_server().port());
  const std::string body = R"({"model":"tiny","prompt":"hi","max_tokens":2})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-Continue\r\n"
      "Content-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(client.read_until("100 Continue\r\n\r\n"));
  client.send(body);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(post(shared_server().port(), kCompletionsPath, body, "Expect: magic\r\n").status, 417);
}

TEST(Connection, ClientsOfHttp10DoNotKnowOf100Continue) {
  Client client(shared_server().port());
  const std::string body = R"({"prompt":"hi","max_tokens":2})";
  client.send(
      "POST /v1/completions HTTP/1.0\r\nExpect: 100-continue\r\n"
      "Content-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(get(shared_server().port(), "/health").status, 200);  // the head is read
  client.send(body);
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  EXPECT_TRUE(client.pending().starts_with("HTTP/1.1 200 ")) << client.pending();
}

TEST(Connection, RefusesOtherProtocols) {
  {
    Client client(shared_server().port());
    client.send("GET /health HTTP/1.0\r\n\r\n");
    const std::optional<Reply> reply = client.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_TRUE(client.sees_end());
  }
  expect_refusal("GET /health\r\n", 400);
  expect_refusal("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
  expect_refusal(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400);
  expect_refusal("GET /health HTTP/3\r\n\r\n", 400);
}

TEST(Connection, EndsAnHttp10StreamWithTheConnection) {
  Client client(shared_server().port());
  const std::string body =
      R"({"model":"tiny","prompt":"hi","max_tokens":4,"ignore_eos":true,"stream":true})";
  client.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->fields.contains("transfer-encoding"));
  ASSERT_FALSE(reply->events().empty());
  EXPECT_EQ(reply->events().back(), "[DONE]");
}

TEST(Connection, ChecksHostAndOrigin) {
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

TEST(Connection, PipelinedRequestsAreAnsweredInOrder) {
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

TEST(Connection, BodiesMayArriveInChunksAndSingleBytes) {
  Client client(shared_server().port());
  const std::string body = R"({"model":"tiny","prompt":"hi","max_tokens":2})";
  std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  for (const char c : body) request += std::string("1\r\n") + c + "\r\n";
  request += "0\r\n\r\n";
  for (const char c : request) ASSERT_TRUE(client.send({&c, 1}));
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
}

}  // namespace
}  // namespace koho::server
