// SPDX-License-Identifier: Apache-2.0
// Bad requests: bodies, heads, keys, models, prompts. Which are refused, with which status, field
// and code; the server answers a good request after each. Fields of a body are in
// bad_field_test.cpp, sockets in connection_test.cpp and http_test.cpp.
#include "bad_input.h"

#include <atomic>
#include <functional>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

TEST(BadInput, RefusesBodiesThatAreNotJson) {
  for (const Api api : kBoth) {
    for (const char* body : {"", "no", "{", "{\"model\":\"tiny\"", "{} {}", "{\"a\":1}x", "[]",
                             "\"text\"", "7", "null", "{\"model\":NaN}"})
      refuse_body(api, body, 400, "", "invalid_json");
    std::string deep = "{\"model\":";
    for (int i = 0; i < 70; ++i) deep += '[';
    for (int i = 0; i < 70; ++i) deep += ']';
    refuse_body(api, deep + "}", 400, "", "invalid_json");
    refuse_body(api, R"({"model":"tiny","model":"tiny"})", 400, "", "invalid_json");
  }
}

TEST(BadInput, DoesNotRepeatTheTextInItsMessages) {
  const std::uint16_t port = shared_server().port();
  const std::string secret(100'000, 's');
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/messages",
                           "/v1/responses", "/generate", "/tokenize"})
    for (const std::string& body :
         {R"({"model":"tiny","messages":[{"role":"user","content":")" + secret + R"(\q"}]})",
          R"({"model":"tiny","prompt":")" + secret,
          R"({")" + secret + R"(":1,")" + secret + "\":2}", R"({"model":")" + secret + "\"}",
          R"({"model":"tiny","stop":")" + secret + "\"}"}) {
      const Reply reply = post(port, path, body);
      EXPECT_GE(reply.status, 400) << path << body.substr(0, 100);
      EXPECT_LT(reply.status, 500) << path << body.substr(0, 100);
      EXPECT_LT(reply.body.size(), 500U) << path << reply.body.substr(0, 600);
    }
}

TEST(BadInput, RefusesTextThatIsNotUnicode) {
  for (const Api api : kBoth) {
    refuse_body(api, "{\"model\":\"\xff\"}", 400, "", "invalid_encoding");
    refuse_body(api, R"({"model":"\ud800"})", 400, "model", "invalid_encoding");
    refuse_body(api, R"({"model":"tiny","stop":["a","\ud800"]})", 400, "stop[1]",
                "invalid_encoding");
  }
  // U+0000 in a text is an ordinary character.
  accept_both(R"("user":"a\u0000b")");
}

TEST(BadInput, RefusesOtherMediaTypes) {
  for (const Api api : kBoth) {
    Client client(shared_server().port());
    const auto with = [&](const std::string& field) {
      const std::string body = body_with(api, "");
      client.send(std::string("POST ") + path_of(api) + " HTTP/1.1\r\nHost: localhost\r\n" + field +
                  "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
      return *client.read_reply();
    };
    expect_error(with("Content-Type: application/json\r\nContent-Encoding: gzip"), 415, "",
                 "unsupported_media_type", "gzip");
    expect_error(post(shared_server().port(), path_of(api), "x=1", "Content-Encoding: gzip\r\n"),
                 415, "", "unsupported_media_type", "gzip");
    Client form(shared_server().port());
    form.send(
        std::string("POST ") + path_of(api) +
        " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
    expect_error(*form.read_reply(), 415, "", "unsupported_media_type", "text/plain");
    expect_alive(api);
  }
}

TEST(BadInput, RefusesUnknownMethodsAndPaths) {
  const std::uint16_t port = shared_server().port();
  expect_error(get(port, "/v1/chat/completions"), 405, "", "not_found", "GET");
  EXPECT_EQ(get(port, "/v1/chat/completions").fields.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(post(port, "/health", "{}").fields.at("allow"), "GET, HEAD, OPTIONS");
  for (const auto& [path, allowed] :
       {std::pair{"/metrics", "GET, HEAD, OPTIONS"},
        std::pair{"/v1/models/tiny", "GET, HEAD, OPTIONS"},
        std::pair{"/v1/messages", "POST, OPTIONS"}, std::pair{"/ping", "GET, HEAD, POST, OPTIONS"},
        std::pair{"/v1/files/x", "GET, HEAD, DELETE, OPTIONS"},
        std::pair{"/nothing", "GET, HEAD, POST, DELETE, OPTIONS"}}) {
    Client asks(port);
    asks.send(std::string("OPTIONS ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const std::optional<Reply> reply = asks.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->fields.at("allow"), allowed) << path;
  }
  expect_error(get(port, "/v1/nothing"), 404, "", "not_found", "path");
  expect_error(get(port, "/v1/embeddings"), 404, "", "not_found", "path");
  for (const char* method : {"TRACE", "CONNECT", "BREW"}) {
    Client client(port);
    client.send(std::string(method) + " /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.read_reply()->status, 405) << method;
  }
  // Range and Upgrade headers are ignored.
  EXPECT_EQ(get(port, "/v1/models", "Range: bytes=0-3\r\n").status, 200);
  EXPECT_EQ(get(port, "/v1/models", "Connection: Upgrade\r\nUpgrade: websocket\r\n").status, 200);
  for (const Api api : kBoth) expect_alive(api);
}

TEST(BadInput, RefusesMissingAndWrongApiKeys) {
  TinyServer server([](ServerSettings& settings) { settings.api_keys = {"first", "second-key"}; });
  Api api = Api::chat;
  const auto ask = [&](const std::string& field) {
    return post(server.port(), path_of(api), body_with(api, ""), field);
  };
  for (const std::string& field :
       {std::string(), std::string("Authorization: Bearer wrong\r\n"),
        std::string("Authorization: Bearer firs\r\n"),
        std::string("Authorization: Bearer firstfirst\r\n"), std::string("x-api-key: x\r\n"),
        std::string("Authorization: Basic first\r\n"),
        "x-api-key: " + std::string(5000, 'k') + "\r\n"})
    for (const Api one : kBoth) {
      api = one;
      expect_error(ask(field), 401, "", "invalid_api_key", field);
    }
  for (const char* field : {"Authorization: Bearer first\r\n", "x-api-key: second-key\r\n",
                            "authorization: bearer second-key\r\n"})
    for (const Api one : kBoth) {
      api = one;
      EXPECT_EQ(ask(field).status, 200) << field;
    }
  EXPECT_EQ(get(server.port(), "/health").status, 200);
  EXPECT_EQ(get(server.port(), "/metrics").status, 200);
  EXPECT_EQ(get(server.port(), "/v1/models").status, 401);
}

TEST(BadInput, RefusesUnknownModels) {
  for (const Api api : kBoth) {
    refuse(api, R"("model":7)", 400, "model");
    refuse(api, R"("model":"unknown")", 404, "model", "model_not_found");
    // A missing model is the served one: the next field is at fault.
    refuse_body(api, R"({"prompt":7,"messages":[]})", 400, api == Api::chat ? "messages" : "prompt",
                api == Api::chat ? "" : "invalid_prompt");
  }
}

TEST(BadInput, RefusesBadMessages) {
  const auto refused = [](const std::string& value, const std::string& param) {
    refuse(Api::chat, "\"messages\":" + value, 400, param);
  };
  refuse_body(Api::chat, R"({"model":"tiny"})", 400, "messages", "");
  refused("[]", "messages");
  refused("{}", "messages");
  refused("\"hi\"", "messages");
  refused("[7]", "messages[0]");
  std::string many = "[";
  for (int i = 0; i < 10'001; ++i)
    many += std::string(i == 0 ? "" : ",") + R"({"role":"user","content":"a"})";
  refused(many + "]", "messages");
}

TEST(BadInput, RefusesBadMessageParts) {
  const auto refused = [](const std::string& message, const std::string& param,
                          const std::string& code = "") {
    refuse(Api::chat, "\"messages\":[" + message + "]", 400, param, code);
  };
  refused(R"({"role":"robot","content":"a"})", "messages[0].role");
  refused(R"({"content":"a"})", "messages[0].role");
  refused(R"({"role":"user"})", "messages[0].content");
  refused(R"({"role":"user","content":null})", "messages[0].content");
  refused(R"({"role":"user","content":7})", "messages[0].content");
  refused(R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]})",
          "messages[0].content[0]", "unsupported_content");
  refused(R"({"role":"user","content":[{"type":"input_audio"}]})", "messages[0].content[0]",
          "unsupported_content");
  refused(R"({"role":"user","content":[{"type":"strange"}]})", "messages[0].content[0]",
          "unsupported_content");
  refused(R"({"role":"user","content":[7]})", "messages[0].content[0]");
}

TEST(BadInput, RefusesBadPrompts) {
  for (const char* prompt :
       {R"("")", "[]", "[-1]", "[4096]", "[99999999999]", R"(["a",1])", R"([1,"a"])", "[[1],[]]",
        "[[[1]]]", "7", "{}", "[1.5]", "[true]", R"(["a",""])"})
    refuse(Api::completions, std::string("\"prompt\":") + prompt, 400, "prompt", "invalid_prompt");
}

TEST(BadInput, RefusesPromptsBeyondTheContext) {
  for (const Api api : kBoth) {
    const std::string param = api == Api::chat ? "messages" : "prompt";
    const Reply reply =
        post(shared_server().port(), path_of(api), body_with(api, R"("max_tokens":5000)"));
    expect_error(reply, 400, param, "context_length_exceeded", "5000");
    EXPECT_NE(reply.body.find("5000"), std::string::npos);
    EXPECT_NE(reply.body.find("2048"), std::string::npos);
    expect_alive(api);
  }
  std::string long_text;
  for (int i = 0; i < 4000; ++i) long_text += "word " + std::to_string(i) + " ";
  std::string quoted;
  append_json_string(quoted, long_text);
  refuse(Api::completions, "\"prompt\":" + quoted, 400, "prompt", "context_length_exceeded");
  refuse(Api::chat, R"("messages":[{"role":"user","content":)" + quoted + "}]", 400, "messages",
         "context_length_exceeded");
}

TEST(BadInput, ReadsSpelledControlTokensAsText) {
  for (const char* text : {"<|user|>", "<|endoftext|>", "[gMASK]<sop>", "</think>"}) {
    const Reply reply =
        post(shared_server().port(), "/tokenize",
             std::string(R"({"messages":[{"role":"user","content":")") + text + R"("}]})");
    const Reply empty =
        post(shared_server().port(), "/tokenize", R"({"messages":[{"role":"user","content":""}]})");
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_GE(std::stoi(text_at(reply.json(), "count")),
              std::stoi(text_at(empty.json(), "count")) + 3)
        << text;
  }
}

TEST(BadInput, ReadsLongTexts) {
  const auto repeated = [](const std::string& unit, std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
  };
  constexpr std::size_t kMillion = 1'000'000;
  for (const std::string& text :
       {repeated("a", kMillion), repeated("\xf0\x9f\x91\xa8\xe2\x80\x8d", kMillion),
        repeated(" ", kMillion), std::string(kMillion / 6, '\0'),
        repeated("e\xcc\x81", kMillion / 5)}) {
    std::string quoted;
    append_json_string(quoted, text);
    for (const Api api : kBoth) {
      const std::string member = api == Api::chat
                                     ? R"("messages":[{"role":"user","content":)" + quoted + "}]"
                                     : "\"prompt\":" + quoted;
      const Reply reply = post(shared_server().port(), path_of(api), body_with(api, member));
      EXPECT_TRUE(
          reply.status == 200 ||
          (reply.status == 400 && text_at(reply.json(), "error.code") == "context_length_exceeded"))
          << reply.status << reply.body.substr(0, 300);
      expect_alive(api);
    }
  }
}

TEST(BadInput, AnswersWhileTheModelLoads) {
  SteadyClock clock;
  ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.io_threads = 1;
  settings.log_requests = false;
  const std::unique_ptr<Server> server = std::move(*Server::start(settings, clock));
  struct HandClock final : Clock {
    std::int64_t now_us() const override { return us; }
    std::atomic<std::int64_t> us{1};
  } hand;
  LoadProgress progress(hand);
  server->core().set_loading("the weights", &progress);
  EXPECT_TRUE(at(get(server->port(), "/readyz").json(), "progress").is_null());
  progress.expect(8'000'000'000);
  EXPECT_TRUE(at(get(server->port(), "/readyz").json(), "seconds_left").is_null());
  hand.us += 500'000;
  progress.arrived(2'000'000'000);
  for (const Api api : kBoth) {
    const Reply reply = post(server->port(), path_of(api), body_with(api, ""));
    expect_error(reply, 503, "", "service_unavailable", "loading");
    EXPECT_TRUE(reply.fields.contains("retry-after"));
  }
  const Reply ready = get(server->port(), "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(text_at(ready.json(), "waiting_for"), "the weights");
  EXPECT_EQ(text_at(ready.json(), "progress"), "0.25");
  EXPECT_EQ(text_at(ready.json(), "bytes_done"), "2000000000");
  EXPECT_EQ(text_at(ready.json(), "bytes_total"), "8000000000");
  EXPECT_EQ(*at(ready.json(), "gb_per_s").as_number(), 4.0);
  EXPECT_EQ(*at(ready.json(), "seconds_left").as_number(), 1.5);
  EXPECT_EQ(get(server->port(), "/livez").status, 200);
  EXPECT_EQ(get(server->port(), "/metrics").status, 200);
}

TEST(BadInput, EndsARequestAtItsTimeout) {
  for (const Api api : kBoth) {
    refuse(api, R"("timeout":0)", 400, "timeout");
    refuse(api, R"("timeout":-1)", 400, "timeout");
    const Reply whole =
        post(shared_server().port(), path_of(api),
             body_with(api, R"("timeout":0.000001,"max_tokens":500,"ignore_eos":true)"));
    expect_error(whole, 408, "", "timeout", "deadline");
    EXPECT_EQ(whole.fields.at("x-should-retry"), "false");
    const Reply stream = post(
        shared_server().port(), path_of(api),
        body_with(api, R"("timeout":0.000001,"max_tokens":500,"ignore_eos":true,"stream":true)"));
    // Before the first byte the error is a status, after it an event.
    if (stream.status == 200) {
      const std::vector<std::string> events = stream.events();
      ASSERT_GE(events.size(), 2U);
      EXPECT_EQ(events.back(), "[DONE]");
      EXPECT_EQ(text_at(*chat::parse_json(events[events.size() - 2]), "error.code"), "timeout");
    } else {
      expect_error(stream, 408, "", "timeout", "deadline");
    }
    expect_alive(api);
  }
}

TEST(BadInput, RefusesPathsThatLeaveTheirDirectory) {
  for (const char* path : {"/v1/models/../../etc/passwd", "/v1/models/%2e%2e/%2e%2e/etc/passwd",
                           "/v1/models/%252e%252e%252fetc", "/../etc/passwd", "/v1/models/%00"})
    EXPECT_EQ(get(shared_server().port(), path).status, 404) << path;
  EXPECT_EQ(get(shared_server().port(), "/v1/models/%zz").status, 400);
}

TEST(BadInput, ServesManyUsers) {
  Client client(shared_server().port());
  for (int i = 0; i < 200; ++i) {
    const std::optional<Reply> reply = client.post(
        path_of(Api::completions),
        body_with(Api::completions, R"("max_tokens":1,"user":"user )" + std::to_string(i) + "\""));
    ASSERT_TRUE(reply && reply->status == 200) << i;
  }
  EXPECT_TRUE(shared_server().becomes_idle());
}

TEST(BadInput, ReadsNumbersInEveryNotation) {
  accept_both(R"("temperature":1E0)");
  accept_both(R"("temperature":-0)");
  accept_both(R"("temperature":0.1e1)");
  // An integer may be written as a number without a fraction.
  for (const char* field : {R"("top_k":5.0)", R"("top_k":5E0)", R"("seed":1e3)", R"("n":1.0)",
                            R"("max_tokens":2.0)", R"("stop_token_ids":[7.0])"})
    accept_both(field);
  EXPECT_EQ(post(shared_server().port(), "/v1/messages",
                 R"({"model":"tiny","max_tokens":1E0,"messages":[{"role":"user","content":"a"}]})")
                .status,
            200);
  for (const char* value : {"5.5", "1e17", "1e300"})
    refuse_both(R"("top_k":)" + std::string(value), "top_k");
  refuse_both("\"seed\":" + std::string(200, '9'), "seed");
  refuse_both("\"temperature\":" + std::string(200, '9'), "temperature");
  refuse_both("\"seed\":" + std::string(400, '9'), "seed");
  // An integer of more digits than Python reads is refused by the JSON parser, without a field.
  for (const Api api : kBoth)
    refuse_body(api, R"({"model":"tiny","seed":)" + std::string(5000, '9') + "}", 400, "",
                "invalid_json");
}

}  // namespace
}  // namespace koho::server
