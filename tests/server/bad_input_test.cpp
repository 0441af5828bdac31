// SPDX-License-Identifier: Apache-2.0
// The fifty rows of bad input: what is refused, with which status, field and code; and that the
// server answers a good request after each. Rows are tested on both completion APIs where they
// apply to both. Rows about sockets rather than bodies stand in connection_test.cpp.
#include <chrono>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

enum class Api : std::uint8_t { chat, completions };
constexpr Api kBoth[] = {Api::chat, Api::completions};

const char* path_of(Api api) {
  return api == Api::chat ? "/v1/chat/completions" : "/v1/completions";
}

/// A good body with `members` ("\"n\":0") added, in place of members of the same name.
std::string body_with(Api api, const std::string& members) {
  const Json extra = *chat::parse_json("{" + members + "}");
  Json body = *chat::parse_json(
      api == Api::chat
          ? R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":2})"
          : R"({"model":"tiny","prompt":"hi","max_tokens":2})");
  for (std::size_t i = 0; i < extra.keys.size(); ++i) body.set(extra.keys[i], extra.items[i]);
  return chat::dump_json(body);
}

void expect_alive(Api api) {
  const Reply reply = post(shared_server().port(), path_of(api), body_with(api, ""));
  EXPECT_EQ(reply.status, 200) << reply.body;
}

void expect_error(const Reply& reply,
                  int status,
                  const std::string& param,
                  const std::string& code,
                  const std::string& what) {
  SCOPED_TRACE(what.substr(0, 300));
  ASSERT_EQ(reply.status, status) << reply.body;
  EXPECT_EQ(reply.fields.at("content-type"), "application/json");
  EXPECT_FALSE(reply.fields.at("x-request-id").empty());
  const Json json = reply.json();
  EXPECT_FALSE(text_at(json, "error.message").empty());
  EXPECT_NE(text_at(json, "error.type").find("_error"), std::string::npos);
  EXPECT_EQ(text_at(json, "error.param"), param.empty() ? "null" : param);
  EXPECT_EQ(text_at(json, "error.code"), code.empty() ? "null" : code);
  // Every code is one that the documentation tells.
  static const std::string documentation =
      *read_file(std::string(KOHO_SOURCE_DIR) + "/docs/server.md", 1U << 20U);
  EXPECT_TRUE(code.empty() || documentation.find('`' + code + '`') != std::string::npos) << code;
}

/// A whole body.
void refuse_body(Api api,
                 const std::string& body,
                 int status,
                 const std::string& param,
                 const std::string& code) {
  expect_error(post(shared_server().port(), path_of(api), body), status, param, code, body);
  expect_alive(api);
}

/// A good body but for these members.
void refuse(Api api,
            const std::string& members,
            int status,
            const std::string& param,
            const std::string& code = "") {
  refuse_body(api, body_with(api, members), status, param, code);
}

void refuse_both(const std::string& members,
                 const std::string& param,
                 const std::string& code = "") {
  for (const Api api : kBoth) refuse(api, members, 400, param, code);
}

void accept_both(const std::string& members) {
  for (const Api api : kBoth) {
    const Reply reply = post(shared_server().port(), path_of(api), body_with(api, members));
    EXPECT_EQ(reply.status, 200) << members.substr(0, 200) << "\n" << reply.body;
    expect_alive(api);
  }
}

TEST(BadInput, Row01And02NotJson) {
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

TEST(BadInput, ARefusalDoesNotSayTheTextAgain) {
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

TEST(BadInput, Row03NoUnicode) {
  for (const Api api : kBoth) {
    refuse_body(api, "{\"model\":\"\xff\"}", 400, "", "invalid_encoding");
    refuse_body(api, R"({"model":"\ud800"})", 400, "model", "invalid_encoding");
    refuse_body(api, R"({"model":"tiny","stop":["a","\ud800"]})", 400, "stop[1]",
                "invalid_encoding");
  }
  // A zero byte in a text is a character like another.
  accept_both(R"("user":"a\u0000b")");
}

TEST(BadInput, Row07MediaTypes) {
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

TEST(BadInput, Row08And44MethodsAndPaths) {
  const std::uint16_t port = shared_server().port();
  expect_error(get(port, "/v1/chat/completions"), 405, "", "not_found", "GET");
  EXPECT_EQ(get(port, "/v1/chat/completions").fields.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(post(port, "/health", "{}").fields.at("allow"), "GET, HEAD, OPTIONS");
  for (const auto& [path, allowed] :
       {std::pair{"/metrics", "GET, HEAD, OPTIONS"},
        std::pair{"/v1/models/tiny", "GET, HEAD, OPTIONS"},
        std::pair{"/v1/messages", "POST, OPTIONS"}, std::pair{"/ping", "GET, HEAD, POST, OPTIONS"},
        std::pair{"/nothing", "GET, HEAD, POST, OPTIONS"}}) {
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
  // Ranges and upgrades are ignored.
  EXPECT_EQ(get(port, "/v1/models", "Range: bytes=0-3\r\n").status, 200);
  EXPECT_EQ(get(port, "/v1/models", "Connection: Upgrade\r\nUpgrade: websocket\r\n").status, 200);
  for (const Api api : kBoth) expect_alive(api);
}

TEST(BadInput, Row09Keys) {
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

TEST(BadInput, Row10Model) {
  for (const Api api : kBoth) {
    refuse(api, R"("model":7)", 400, "model");
    refuse(api, R"("model":"unknown")", 404, "model", "model_not_found");
    refuse_body(api, R"({"prompt":"a","messages":[]})", 400, "model", "");
  }
}

TEST(BadInput, Row11Messages) {
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

TEST(BadInput, Row12MessageParts) {
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

TEST(BadInput, Row13Prompts) {
  for (const char* prompt :
       {R"("")", "[]", "[-1]", "[4096]", "[99999999999]", R"(["a",1])", R"([1,"a"])", "[[1],[]]",
        "[[[1]]]", "7", "{}", "[1.5]", "[true]", R"(["a",""])"})
    refuse(Api::completions, std::string("\"prompt\":") + prompt, 400, "prompt", "invalid_prompt");
}

TEST(BadInput, Row14And15Context) {
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

TEST(BadInput, Row16MaxTokens) {
  for (const char* value : {"-1", "1e99", "\"5\"", "1.5", "true", "[]"})
    refuse_both(std::string("\"max_tokens\":") + value, "max_tokens");
  refuse(Api::chat, R"("max_tokens":0)", 400, "max_tokens");
  refuse(Api::chat, R"("max_completion_tokens":0)", 400, "max_completion_tokens");
  EXPECT_EQ(post(shared_server().port(), path_of(Api::completions),
                 body_with(Api::completions, R"("max_tokens":0)"))
                .status,
            200);
  EXPECT_EQ(post(shared_server().port(), path_of(Api::completions),
                 body_with(Api::completions, R"("max_tokens":null)"))
                .status,
            200);
}

TEST(BadInput, Row17To19Sampling) {
  for (const char* value : {"-0.1", "2.01", "1e99", "\"hot\"", "true"})
    refuse_both(std::string("\"temperature\":") + value, "temperature");
  for (const Api api : kBoth)
    for (const char* literal : {"NaN", "Infinity", "-Infinity", "1e400"})
      refuse_body(api, std::string(R"({"model":"tiny","temperature":)") + literal + "}", 400, "",
                  "invalid_json");
  for (const char* value : {"0", "-1", "1.01"})
    refuse_both(std::string("\"top_p\":") + value, "top_p");
  for (const char* value : {"-2", "1000000000", "1.5"})
    refuse_both(std::string("\"top_k\":") + value, "top_k");
  refuse_both("\"min_p\":1.1", "min_p");
  for (const char* value : {"2.01", "-2.01"}) {
    refuse_both(std::string("\"presence_penalty\":") + value, "presence_penalty");
    refuse_both(std::string("\"frequency_penalty\":") + value, "frequency_penalty");
  }
  for (const char* value : {"0", "-1", "1e9"})
    refuse_both(std::string("\"repetition_penalty\":") + value, "repetition_penalty");
}

TEST(BadInput, Row20To22ChoicesStopsSeeds) {
  for (const char* value : {"0", "-1", "129", "1000000000"})
    refuse_both(std::string("\"n\":") + value, "n");
  refuse(Api::completions, R"("n":3,"best_of":2)", 400, "best_of");
  refuse(Api::completions, R"("n":1,"best_of":2)", 400, "best_of", "unsupported_parameter");
  for (const std::string& value :
       {std::string(R"(["a","b","c","d","e"])"), std::string(R"("")"), std::string(R"([""])"),
        std::string("7"), std::string("[7]"), "\"" + std::string(10'240, 'x') + "\""})
    refuse_both("\"stop\":" + value, "stop");
  for (const char* value : {"18446744073709551616", "1.5", "\"a\""})
    refuse_both(std::string("\"seed\":") + value, "seed");
  accept_both(R"("seed":-1)");
  accept_both(R"("seed":9223372036854775807)");
}

TEST(BadInput, Row23LogitBias) {
  for (const char* value : {R"({"abc":1})", R"({"4096":1})", R"({"-1":1})", R"({"1":101})",
                            R"({"1":-101})", R"({"1":"a"})", "[]"})
    refuse_both(std::string("\"logit_bias\":") + value, "logit_bias");
  std::string most = R"("logit_bias":{"0":0.5)";
  for (int i = 1; i < 1024; ++i) most += ",\"" + std::to_string(i) + "\":0.5";
  accept_both(most + "}");
  // More keys than any object may have: refused before fields have names.
  std::string many = R"({"model":"tiny","logit_bias":{)";
  for (int i = 0; i < 100'000; ++i) many += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  for (const Api api : kBoth) refuse_body(api, many + "}}", 400, "", "invalid_json");
}

TEST(BadInput, Row24Logprobs) {
  for (const char* value : {"-1", "21", "1.5", "\"a\""})
    refuse(Api::completions, std::string("\"logprobs\":") + value, 400, "logprobs");
  for (const char* value : {"-1", "21"})
    refuse(Api::chat, std::string(R"("logprobs":true,"top_logprobs":)") + value, 400,
           "top_logprobs");
  refuse(Api::chat, R"("top_logprobs":2)", 400, "top_logprobs");
  refuse(Api::chat, R"("logprobs":5)", 400, "logprobs");
  EXPECT_EQ(
      post(shared_server().port(), path_of(Api::chat), body_with(Api::chat, R"("top_logprobs":0)"))
          .status,
      200);
}

TEST(BadInput, Row25Stream) {
  refuse_both(R"("stream":"yes")", "stream");
  refuse_both(R"("stream_options":{"include_usage":true})", "stream_options");
  refuse_both(R"("stream":true,"stream_options":7)", "stream_options");
  accept_both(R"("stream":true,"stream_options":{"strange":1})");
}

TEST(BadInput, Row26And27Tools) {
  const auto tool = [](const std::string& name, const std::string& parameters = "{}") {
    return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters +
           "}}";
  };
  const auto refused = [](const std::string& tools, const std::string& param) {
    refuse(Api::chat, "\"tools\":" + tools, 400, param);
  };
  refused("7", "tools");
  refused("[7]", "tools[0]");
  refused("[" + tool("with space") + "]", "tools[0].function.name");
  refused("[" + tool(std::string(65, 'x')) + "]", "tools[0].function.name");
  refused("[" + tool("a", "7") + "]", "tools[0].function.parameters");
  refused("[" + tool("a") + "," + tool("a") + "]", "tools[1].function.name");
  std::string many = "[";
  for (int i = 0; i < 1000; ++i) many += (i == 0 ? "" : ",") + tool("t" + std::to_string(i));
  refused(many + "]", "tools");
  refuse(
      Api::chat,
      "\"tools\":[" + tool("a") + R"(],"tool_choice":{"type":"function","function":{"name":"b"}})",
      400, "tool_choice");
  refuse(Api::chat, R"("tool_choice":"required")", 400, "tool_choice");
  refuse(Api::chat, R"("tool_choice":"perhaps")", 400, "tool_choice");
  refuse(Api::chat, R"("tool_choice":7)", 400, "tool_choice");
}

TEST(BadInput, Row28ToolMessagesWithoutCallsAreRead) {
  // Clients cut histories: a result whose call is gone is still a result.
  const Reply reply =
      post(shared_server().port(), path_of(Api::chat),
           body_with(Api::chat, R"("messages":[{"role":"user","content":"a"},)"
                                R"({"role":"tool","tool_call_id":"nobody","content":"7"}])"));
  EXPECT_EQ(reply.status, 200) << reply.body;
  expect_alive(Api::chat);
}

TEST(BadInput, Row29Formats) {
  refuse_both(R"("response_format":{"type":"strange"})", "response_format");
  refuse_both(R"("response_format":7)", "response_format");
  refuse_both(R"("response_format":{"type":"json_schema"})", "response_format",
              "unsupported_schema");
  refuse_both(R"("response_format":{"type":"json_schema","json_schema":{"schema":7}})",
              "response_format", "unsupported_schema");
  refuse_both(R"("response_format":{"type":"structural_tag"})", "response_format",
              "invalid_grammar");
  refuse_both(R"("response_format":{"type":"structural_tag","format":{"type":"token","token":5}})",
              "response_format", "invalid_grammar");
  refuse_both(R"("structured_outputs":{"structural_tag":"{"})", "structured_outputs.structural_tag",
              "invalid_grammar");
  refuse_both(R"("structured_outputs":{"structural_tag":7})", "structured_outputs.structural_tag");
}

TEST(BadInput, Row30And31HostileSchemas) {
  const auto schema = [](const std::string& text) {
    return R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" + text +
           "}}";
  };
  const auto refused = [&](const std::string& text, const std::string& code) {
    refuse_both(schema(text), "response_format", code);
  };
  std::string many = R"({"enum":[)";
  for (int i = 0; i < 70'000; ++i) many += (i > 0 ? ",\"v" : "\"v") + std::to_string(i) + '"';
  refused(many + "]}", "grammar_too_complex");
  for (const char* text :
       {R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
        R"({"type":"integer","minimum":5,"maximum":4})", R"({"type":"string","enum":[1,2]})",
        R"({"properties":{},"required":["a"],"additionalProperties":false})"})
    refused(text, "unsatisfiable_schema");
  // What others choke on by backtracking or by unfolding is no work for an automaton that counts.
  accept_both(schema(R"({"type":"string","pattern":"^(a+)+$"})"));
  // Whether counting a billion fits into the time is the machine's affair.
  for (const Api api : kBoth) {
    const Reply reply = post(
        shared_server().port(), path_of(api),
        body_with(api, schema(R"({"type":"string","pattern":"^((a{1,1000}){1,1000}){1,1000}$"})")));
    EXPECT_TRUE(reply.status == 200 || text_at(reply.json(), "error.code") == "grammar_too_complex")
        << reply.body;
    expect_alive(api);
  }
  // 30,000 levels: the body is refused before fields have names, a schema in a string with its own.
  std::string deep;
  for (int i = 0; i < 30'000; ++i) deep += R"({"type":"array","items":)";
  deep += "{}" + std::string(30'000, '}');
  for (const Api api : kBoth)
    refuse_body(api, R"({"model":"tiny",)" + schema(deep) + "}", 400, "", "invalid_json");
}

TEST(BadInput, Row32UnknownFieldsAreCounted) {
  const std::uint64_t before = shared_server().counters().unknown_fields.load();
  accept_both(R"("strange_field":{"a":[1,2]},"store":false)");
  EXPECT_EQ(shared_server().counters().unknown_fields.load(), before + 2);
  TinyServer strict;
  strict.serving().model.strict_fields = true;
  expect_error(
      post(strict.port(), path_of(Api::chat), body_with(Api::chat, R"("strange_field":1)")), 400,
      "strange_field", "unsupported_parameter", "strict");
  for (const char* name : {"session_id", "stream_interval", "functions", "lora_path"})
    expect_error(post(strict.port(), path_of(Api::chat),
                      body_with(Api::chat, '"' + std::string(name) + R"(":["x"])")),
                 400, name, "unsupported_parameter", name);
  for (const auto& [body, param] :
       {std::pair{R"("thinking":{"type":"enabled","depth":3})", "thinking.depth"},
        std::pair{R"("response_format":{"type":"text","style":"x"})", "response_format.style"},
        std::pair{
            R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"mode":1}})",
            "response_format.json_schema.mode"}})
    expect_error(post(strict.port(), path_of(Api::chat), body_with(Api::chat, body)), 400, param,
                 "unsupported_parameter", param);
  EXPECT_EQ(post(strict.port(), path_of(Api::chat),
                 body_with(Api::chat, R"("session_id":null,"functions":[],"store":true,)"
                                      R"("thinking":{"type":"disabled","clear_thinking":true})"))
                .status,
            200);
}

TEST(BadInput, Row33And47Refused) {
  refuse_both(R"("use_beam_search":true)", "use_beam_search", "unsupported_parameter");
  refuse_both(R"("chat_template":"{{ 1 }}")", "chat_template", "unsupported_parameter");
  refuse(Api::chat, R"("chat_template_kwargs":{"strange":1})", 400, "chat_template_kwargs",
         "unsupported_parameter");
  refuse(Api::chat, R"("chat_template_kwargs":7)", 400, "chat_template_kwargs");
  refuse_both(R"("prompt_embeds":"AAAA")", "prompt_embeds", "unsupported_parameter");
  refuse_both(R"("suffix":"x")", "suffix", "unsupported_parameter");
  refuse_both(R"("length_penalty":1.5)", "length_penalty", "unsupported_parameter");
  // Values that ask for nothing.
  accept_both(
      R"("suffix":"","length_penalty":1.0,"typical_p":1,"documents":[],"use_beam_search":false)");
}

TEST(BadInput, Row34SpelledTokensAreText) {
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

TEST(BadInput, Row35LongTexts) {
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

TEST(BadInput, Row39Loading) {
  SteadyClock clock;
  ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.io_threads = 1;
  settings.log_requests = false;
  const std::unique_ptr<Server> server = std::move(*Server::start(settings, clock));
  LoadProgress progress(clock);
  server->core().set_loading("the weights", &progress);
  EXPECT_TRUE(at(get(server->port(), "/readyz").json(), "progress").is_null());
  progress.expect(8'000'000'000);
  EXPECT_TRUE(at(get(server->port(), "/readyz").json(), "seconds_left").is_null());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the way of 2 GB
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
  const double rate = *at(ready.json(), "gb_per_s").as_number();
  EXPECT_GT(rate, 0.0);
  EXPECT_LE(rate, 100.0);
  EXPECT_NEAR(*at(ready.json(), "seconds_left").as_number(), 6.0 / rate, 0.1 + 0.01 / rate);
  EXPECT_EQ(get(server->port(), "/livez").status, 200);
  EXPECT_EQ(get(server->port(), "/metrics").status, 200);
}

TEST(BadInput, Row40Deadline) {
  for (const Api api : kBoth) {
    refuse(api, R"("timeout":0)", 400, "timeout");
    refuse(api, R"("timeout":-1)", 400, "timeout");
    const Reply whole =
        post(shared_server().port(), path_of(api),
             body_with(api, R"("timeout":0.000001,"max_tokens":500,"ignore_eos":true)"));
    expect_error(whole, 503, "", "timeout", "deadline");
    const Reply stream = post(
        shared_server().port(), path_of(api),
        body_with(api, R"("timeout":0.000001,"max_tokens":500,"ignore_eos":true,"stream":true)"));
    // Before the first byte a status, after it an event.
    if (stream.status == 200) {
      const std::vector<std::string> events = stream.events();
      ASSERT_GE(events.size(), 2U);
      EXPECT_EQ(events.back(), "[DONE]");
      EXPECT_EQ(text_at(*chat::parse_json(events[events.size() - 2]), "error.code"), "timeout");
    } else {
      expect_error(stream, 503, "", "timeout", "deadline");
    }
    expect_alive(api);
  }
}

TEST(BadInput, Row45Paths) {
  for (const char* path : {"/v1/models/../../etc/passwd", "/v1/models/%2e%2e/%2e%2e/etc/passwd",
                           "/v1/models/%252e%252e%252fetc", "/../etc/passwd", "/v1/models/%00"})
    EXPECT_EQ(get(shared_server().port(), path).status, 404) << path;
  EXPECT_EQ(get(shared_server().port(), "/v1/models/%zz").status, 400);
}

TEST(BadInput, Row46ManyUsers) {
  Client client(shared_server().port());
  for (int i = 0; i < 200; ++i) {
    const std::optional<Reply> reply = client.post(
        path_of(Api::completions),
        body_with(Api::completions, R"("max_tokens":1,"user":"user )" + std::to_string(i) + "\""));
    ASSERT_TRUE(reply && reply->status == 200) << i;
  }
  EXPECT_TRUE(shared_server().becomes_idle());
}

TEST(BadInput, Row50Numbers) {
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
  // Beyond what a double holds a number is refused before fields have names.
  for (const Api api : kBoth)
    for (const std::size_t digits : {400U, 5000U})
      refuse_body(api, R"({"model":"tiny","seed":)" + std::string(digits, '9') + "}", 400, "",
                  "invalid_json");
}

}  // namespace
}  // namespace koho::server
