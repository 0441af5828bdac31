// SPDX-License-Identifier: Apache-2.0
// /openapi.json says what the readers do: every type it gives is one that they refuse otherwise.
#include "server/openapi.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "server/handlers.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

Json document() {
  const Result<Json> json = chat::parse_json(openapi_json());
  EXPECT_TRUE(json.ok()) << json.error().message;
  return json.ok() ? *json : Json();
}

bool allows(const Json& schema, std::string_view type) {
  const Json* types = schema.find("type");
  if (types == nullptr) return true;
  for (const Json& one : types->items)
    if (one.text == type) return true;
  return false;
}

TEST(OpenApi, HasEveryRoute) {
  const Json paths = *document().find("paths");
  for (const Route& route : routes()) {
    std::string path(route.path);
    if (const std::size_t star = path.find('*'); star != std::string::npos)
      path.replace(star, 1, "{id}");
    const Json* operations = paths.find(path);
    ASSERT_NE(operations, nullptr) << path;
    std::string method(route.method);
    for (char& c : method) c = static_cast<char>(c | 0x20);
    EXPECT_NE(operations->find(method), nullptr) << method << ' ' << path;
  }
  EXPECT_EQ(get(shared_server().port(), "/openapi.json").body, openapi_json());
}

TEST(OpenApi, AnswersAreOfTheTypesThatItNames) {
  const Json paths = *document().find("paths");
  for (const Route& route : routes()) {
    const bool has_id = route.path.find('*') != std::string_view::npos;
    if (route.method != "GET" || route.feed != nullptr || has_id) continue;
    const Reply reply = get(shared_server().port(), std::string(route.path));
    const Json responses = at(*paths.find(route.path), "get.responses");
    const Json* answer = responses.find(std::to_string(reply.status));
    if (answer == nullptr) answer = responses.find("default");
    const std::string type = reply.fields.at("content-type");
    const Json types = at(*answer, "content");
    const Json* content = types.find(type.substr(0, type.find(';')));
    ASSERT_NE(content, nullptr) << route.path << ' ' << type;
    if (reply.status != 200 || type != "application/json") continue;
    EXPECT_EQ(text_at(*content, "schema.type"), reply.json().is_array() ? "array" : "object")
        << route.path;
  }
}

/// A body that the endpoint would answer, less its end, with one field of that value.
std::string body_with(std::string_view path, const std::string& name, const std::string& value) {
  std::string body =
      path == "/v1/completions"
          ? R"({"prompt":"a","max_completion_tokens":1)"
          : R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":1)";
  if (name == "max_completion_tokens" || name == "prompt" || name == "messages")
    body = path == "/v1/completions" ? R"({"max_tokens":1)" : R"({"max_tokens":1)";
  return body + ",\"" + name + "\":" + value + "}";
}

TEST(OpenApi, TypesAreThoseThatTheReadersCheck) {
  const std::vector<std::pair<std::string_view, std::string>> values{
      {"boolean", "true"}, {"number", "0.5"}, {"integer", "1"},
      {"string", "\"x\""}, {"object", "{}"},  {"array", "[]"}};
  const Json paths = *document().find("paths");
  int checked = 0;
  for (const std::string_view path : {"/v1/chat/completions", "/v1/completions"}) {
    const Json schema = at(*paths.find(path), "post.requestBody.content.application/json.schema");
    const Json* properties = schema.find("properties");
    ASSERT_NE(properties, nullptr);
    EXPECT_GT(properties->keys.size(), 40U);
    for (std::size_t i = 0; i < properties->keys.size(); ++i) {
      const std::string& name = properties->keys[i];
      const Json& field = properties->items[i];
      // The server reads it before the table, and ignores other types of user's tags.
      if (field.find("type") == nullptr) continue;
      for (const auto& [type, value] : values) {
        if (allows(field, type) || (type == "integer" && allows(field, "number"))) continue;
        const Reply reply = post(shared_server().port(), path, body_with(path, name, value));
        EXPECT_EQ(reply.status, 400) << path << ' ' << name << ": " << value << '\n' << reply.body;
        ++checked;
      }
      for (const char* bound : {"minimum", "maximum"}) {
        const Json* limit = field.find(bound);
        if (limit == nullptr) continue;
        const double beyond = *limit->as_number() + (bound[1] == 'i' ? -1.0 : 1.0);
        const Reply reply =
            post(shared_server().port(), path,
                 body_with(path, name, std::to_string(static_cast<long long>(beyond))));
        EXPECT_EQ(reply.status, 400) << path << ' ' << name << ' ' << bound << '\n' << reply.body;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 200);
}

TEST(OpenApi, ThePageNeedsNoScriptAndNothingFromElsewhere) {
  const Reply page = get(shared_server().port(), "/docs");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.fields.at("content-security-policy").find("default-src 'none'"),
            std::string::npos);
  EXPECT_EQ(page.fields.at("content-security-policy").find("script"), std::string::npos);
  EXPECT_EQ(page.body.find("<script"), std::string::npos);
  EXPECT_EQ(page.body.find("http://"), std::string::npos);
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
  EXPECT_NE(page.body.find("top_logprobs"), std::string::npos);
  EXPECT_EQ(get(shared_server().port(), "/docs/style.css").fields.at("content-type"),
            "text/css; charset=utf-8");
}

}  // namespace
}  // namespace koho::server
