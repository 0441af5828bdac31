// SPDX-License-Identifier: Apache-2.0
#include "server/openapi.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "api/body_fields.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"

namespace koho::server {
namespace {

constexpr std::string_view kStyle =
    R"(:root { color-scheme: light dark; background: Canvas; color: CanvasText; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
summary { cursor: pointer; padding: .3rem 0; }
p { margin: .4rem 0; }
code { font: 14px ui-monospace, monospace; }
.method { display: inline-block; min-width: 4.5rem; font-weight: bold; }
table { width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; }
)";

/// What each POST endpoint does, where the route's row does not say it.
constexpr std::pair<std::string_view, std::string_view> kAbout[] = {
    {"/v1/chat/completions", "OpenAI's chat completions"},
    {"/v1/completions", "OpenAI's completions"},
    {"/v1/responses", "OpenAI's responses, without storage"},
    {"/v1/messages", "Anthropic's messages"},
    {"/v1/messages/count_tokens", "counts a message's tokens"},
    {"/generate", "koho's own: ids or text in; ids, text, usage and timings out"},
    {"/completion", "llama.cpp's completion"},
    {"/tokenize", "text or messages to token ids"},
    {"/detokenize", "token ids to text"},
    {"/v1/chat/completions/render", "a chat's prompt as text and ids"},
};

std::string_view about(const Route& route) {
  if (!route.about.empty()) return route.about;
  for (const auto& [path, text] : kAbout)
    if (path == route.path) return text;
  return route.path;
}

/// "/v1/files/{id}/content"
std::string shown_path(const Route& route) {
  std::string path(route.path);
  if (const std::size_t star = path.find('*'); star != std::string::npos)
    path.replace(star, 1, "{id}");
  return path;
}

std::string body_schema(const Route& route) {
  if (route.takes_form)
    return R"({"type":"object","required":["file","purpose"],"properties":{)"
           R"("file":{"type":"string","contentMediaType":"application/octet-stream"},)"
           R"("purpose":{"const":"batch"}}})";
  std::string out = R"({"type":"object")";
  if (const std::string_view name = api::required_field(route.path); !name.empty())
    out += fmt::format(R"(,"required":["{}"])", name);
  out += R"(,"properties":{)";
  for (const api::BodyField& field : api::body_fields(route.path)) {
    if (out.back() != '{') out += ',';
    append_json_string(out, field.name);
    out += ':' + api::field_schema(field);
  }
  return out + "}}";
}

/// What an answer that is no error has, as a JSON object.
std::string answer_content(const Route& route) {
  const std::string_view path = route.path;
  if (route.feed != nullptr) return R"({"text/event-stream":{}})";
  if (path.ends_with("/content")) return R"({"application/octet-stream":{}})";
  if (path == "/ui" || path == "/docs") return R"({"text/html":{}})";
  if (path.ends_with(".css")) return R"({"text/css":{}})";
  if (path == "/" || path == "/metrics") return R"({"text/plain":{}})";
  return fmt::format(R"({{"application/json":{{"schema":{{"type":"{}"}}}}{}}})",
                     path == "/slots" ? "array" : "object",
                     route.generation != nullptr ? R"(,"text/event-stream":{})" : "");
}

/// One route's operation.
std::string operation(const Route& route) {
  std::string name = lower_case(route.method) + shown_path(route);
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == '{' || c == '}' || c == '.'; }, '_');
  std::string out = fmt::format(R"({{"operationId":"{}","summary":)", name);
  append_json_string(out, about(route));
  if (route.path.find('*') != std::string_view::npos)
    out += R"(,"parameters":[{"name":"id","in":"path","required":true,)"
           R"("schema":{"type":"string"}}])";
  if (route.open) out += R"(,"security":[{}])";
  if (route.method == "POST" && !route.open)
    out += fmt::format(R"(,"requestBody":{{"required":{},"content":{{"{}":{{"schema":{}}}}}}})",
                       route.path.find('*') == std::string_view::npos,
                       route.takes_form ? "multipart/form-data" : "application/json",
                       body_schema(route));
  out += fmt::format(R"(,"responses":{{"{}":{{"description":"the answer","content":{}}},)",
                     route.path == "/" ? 302 : 200, answer_content(route));
  out += R"("default":{"description":"an error","content":{"application/json":{"schema":)"
         R"({"$ref":"#/components/schemas/Error"}}}}}})";
  return out;
}

std::string make_openapi() {
  std::string out =
      fmt::format(R"({{"openapi":"3.1.0","info":{{"title":"koho","version":"{}","summary":)"
                  R"("GLM-4.5, 4.6 and 4.7 over OpenAI's and Anthropic's APIs"}},)"
                  R"("security":[{{"bearer":[]}},{{"key":[]}},{{}}],"paths":{{)",
                  kVersion);
  std::vector<std::string> paths;
  for (const Route& route : routes())
    if (const std::string path = shown_path(route); std::ranges::find(paths, path) == paths.end())
      paths.push_back(path);
  for (const std::string& path : paths) {
    if (out.back() != '{') out += ',';
    append_json_string(out, path);
    out += ":{";
    for (const Route& route : routes()) {
      if (shown_path(route) != path) continue;
      if (out.back() != '{') out += ',';
      out += fmt::format(R"("{}":{})", lower_case(route.method), operation(route));
    }
    out += '}';
  }
  out +=
      R"(},"components":{"securitySchemes":{"bearer":{"type":"http","scheme":"bearer"},)"
      R"("key":{"type":"apiKey","in":"header","name":"x-api-key"}},"schemas":{"Error":)"
      R"({"type":"object","properties":{"error":{"type":"object","properties":{)"
      R"("message":{"type":"string"},"type":{"type":"string"},"param":{"type":["string","null"]},)"
      R"("code":{"type":["string","null"]}}}}}}}})";
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

/// One route on the page, with the fields of its body.
std::string shown(const Route& route) {
  const std::string head =
      fmt::format("<span class=\"method\">{}</span> <code>{}</code> {}", route.method,
                  escaped(shown_path(route)), escaped(about(route)));
  const std::vector<api::BodyField> fields = api::body_fields(route.path);
  if (fields.empty()) return fmt::format("<p>{}</p>\n", head);
  std::string out = fmt::format(
      "<details><summary>{}</summary><table><thead><tr><th scope=\"col\">field</th><th "
      "scope=\"col\">takes</th></tr></thead><tbody>\n",
      head);
  for (const api::BodyField& field : fields)
    out += fmt::format("<tr><td><code>{}</code></td><td>{}</td></tr>\n", escaped(field.name),
                       escaped(field.takes));
  return out + "</tbody></table></details>\n";
}

std::string make_page() {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>koho: the API</title><link rel=\"stylesheet\" "
      "href=\"/docs/style.css\"></head><body><main>\n<h1>The API of this server</h1>\n<p>koho " +
      std::string(kVersion) +
      ". For programs: <a href=\"/openapi.json\">/openapi.json</a>. To try it: <a "
      "href=\"/ui\">/ui</a>.</p>\n";
  // First what clients ask a model, then the rest, each in the order of the table.
  for (const bool of_model : {true, false})
    for (const Route& route : routes())
      if ((route.generation != nullptr || route.text != nullptr) == of_model) out += shown(route);
  return out + "</main></body></html>\n";
}

}  // namespace

const std::string& openapi_json() {
  static const std::string document = make_openapi();
  return document;
}

Response answer_openapi(Core& /*core*/, const RoutedRequest& /*call*/) {
  Response response;
  response.body = openapi_json();
  return response;
}

Response answer_docs(Core& /*core*/, const RoutedRequest& /*call*/) {
  static const std::string page = make_page();
  Response response{.content_type = "text/html; charset=utf-8"};
  response.body = page;
  response.fields.emplace_back("Content-Security-Policy",
                               "default-src 'none'; style-src 'self'; base-uri 'none'; "
                               "form-action 'none'; frame-ancestors 'none'");
  response.fields.emplace_back("X-Content-Type-Options", "nosniff");
  response.fields.emplace_back("Referrer-Policy", "no-referrer");
  return response;
}

Response answer_docs_style(Core& /*core*/, const RoutedRequest& /*call*/) {
  Response response{.content_type = "text/css; charset=utf-8"};
  response.body = kStyle;
  response.fields.emplace_back("X-Content-Type-Options", "nosniff");
  return response;
}

}  // namespace koho::server
