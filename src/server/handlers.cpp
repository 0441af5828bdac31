// SPDX-License-Identifier: Apache-2.0
#include "server/handlers.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "api/body.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"
#include "chat/json.h"
#include "server/dashboard.h"
#include "server/file_routes.h"
#include "server/host_check.h"
#include "server/llama_routes.h"
#include "server/metrics_page.h"
#include "server/openapi.h"
#include "tokenizer/utf8.h"

namespace koho::server {
namespace {

using api::ApiError;
using api::error_style;
using api::ErrorStyle;

Response json_response(std::string body, int status = 200) {
  Response response{.status = status};
  response.body = std::move(body);
  return response;
}

Response refuse(ErrorStyle style,
                int status,
                std::string_view code,
                std::string message,
                std::int32_t retry_after_s = 0) {
  return error_response(style, {.status = status,
                                .code = std::string(code),
                                .param = {},
                                .message = std::move(message),
                                .retry_after_s = retry_after_s});
}

/// OpenAI and Anthropic share the path /v1/models; Anthropic's clients send `anthropic-version`.
ErrorStyle style_of(const RequestHead& head) {
  const bool models = head.path == "/v1/models" || head.path.starts_with("/v1/models/");
  return models && head.has("anthropic-version") ? ErrorStyle::anthropic : error_style(head.path);
}

// ---- answers

Response answer_livez(Core& core, const RoutedRequest& /*call*/) {
  const bool alive = core.phase() != Phase::failed;
  return json_response(alive ? R"({"status":"ok"})" : core.readiness_json(), alive ? 200 : 503);
}

Response answer_readyz(Core& core, const RoutedRequest& /*call*/) {
  std::string json = core.readiness_json();
  const bool ready = json.starts_with(R"({"status":"ready")");
  Response response = json_response(std::move(json), ready ? 200 : 503);
  if (!ready) response.fields.emplace_back("Retry-After", "5");
  return response;
}

/// 2026-11-22T13:00:00Z
std::string utc_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", parts);
}

std::string model_json(const api::Model& model, const std::string& name, ErrorStyle style) {
  if (style == ErrorStyle::anthropic) {
    std::string quoted;
    append_json_string(quoted, name);
    return fmt::format(R"({{"type":"model","id":{},"display_name":{},"created_at":"{}"}})", quoted,
                       quoted, utc_text(model.created));
  }
  std::string out = R"({"id":)";
  append_json_string(out, name);
  out += fmt::format(R"(,"object":"model","created":{},"owned_by":"koho","root":)", model.created);
  append_json_string(out, model.names.front());
  out += fmt::format(R"(,"parent":null,"max_model_len":{}}})", model.context_max());
  return out;
}

Response answer_models(Core& core, const RoutedRequest& call) {
  const api::Model& model = core.serving()->model;
  const ErrorStyle style = style_of(call.head);
  const bool openai = style == ErrorStyle::openai;
  std::string out = openai ? R"({"object":"list","data":[)" : R"({"data":[)";
  for (const std::string& name : model.names) {
    if (out.back() != '[') out += ',';
    out += model_json(model, name, style);
  }
  if (openai) return json_response(out + "]}");
  out += R"(],"has_more":false,"first_id":)";
  append_json_string(out, model.names.front());
  out += R"(,"last_id":)";
  append_json_string(out, model.names.back());
  return json_response(out + '}');
}

Response answer_one_model(Core& core, const RoutedRequest& call) {
  const api::Model& model = core.serving()->model;
  // Anthropic's endpoint serves its own models' names.
  const bool claude =
      call.rest.starts_with("claude-") && utf8_valid_bytes(call.rest) == call.rest.size();
  if (!model.serves(call.rest) && !claude) {
    ApiError error{.status = 404, .code = "model_not_found", .param = "model"};
    error.message = fmt::format(
        "the model \"{:.100}\" does not exist; GET /v1/models lists the served names", call.rest);
    return error_response(style_of(call.head), error);
  }
  return json_response(model_json(model, std::string(call.rest), style_of(call.head)));
}

/// Which program this is: members of a JSON object.
std::string program_members(const Core& core) {
  std::string out = fmt::format(R"("version":"{}")", kVersion);
  if (!core.settings().build_info.empty()) out += ',' + core.settings().build_info;
  return out;
}

Response answer_version(Core& core, const RoutedRequest& /*call*/) {
  return json_response(fmt::format(R"({{"engine":"koho",{}}})", program_members(core)));
}

Response answer_server_info(Core& core, const RoutedRequest& /*call*/) {
  const ServedModel& serving = *core.serving();
  const EngineLimits& limits = serving.model.limits;
  std::string out = R"({"model":)";
  append_json_string(out, serving.model.names.front());
  out += fmt::format(
      R"(,{},"max_model_len":{},"max_num_seqs":{},"max_num_batched_tokens":{},)"
      R"("block_size":{},"num_gpu_blocks":{},"vocab_size":{},"enable_prefix_caching":{},)"
      R"("uptime_seconds":{:.1f})",
      program_members(core), serving.model.context_max(), limits.scheduler.sequences_max,
      limits.scheduler.step_tokens_max, limits.scheduler.tokens_per_page, limits.scheduler.pages,
      limits.vocabulary, limits.scheduler.prefix_cache,
      static_cast<double>(core.uptime_us()) / 1e6);
  const SamplingParameters& defaults = serving.model.defaults.sampling;
  out += fmt::format(
      R"(,"enable_thinking":{},"default_sampling":{{"temperature":{},"top_p":{},"top_k":{},)"
      R"("min_p":{},"repetition_penalty":{}}})",
      serving.model.enable_thinking, defaults.temperature, defaults.top_p, defaults.top_k,
      defaults.min_p, defaults.repetition_penalty);
  if (!serving.server_info.empty()) out += ',' + serving.server_info;
  return json_response(out + '}');
}

Response answer_load(Core& core, const RoutedRequest& /*call*/) {
  const Statistics statistics = core.serving()->engine.statistics();
  return json_response(
      fmt::format(R"({{"server_load":{},"running":{},"waiting":{},"kv_cache_usage":{:.6f}}})",
                  core.counters().requests_live.load(), statistics.running, statistics.waiting,
                  kv_usage(statistics)));
}

Response answer_abort(Core& core, const RoutedRequest& call) {
  const auto reads = [](std::string_view name) { return name == "request_id" || name == "rid"; };
  const Result<chat::Json> json =
      chat::parse_json(call.body, {.values_max = api::kBodyValuesMax, .needs = reads});
  const chat::Json* id = nullptr;
  if (json.ok())
    for (const char* name : {"request_id", "rid"})
      if (id == nullptr) id = json->given(name);
  if (id == nullptr || !id->is_string())
    return error_response(ErrorStyle::openai,
                          api::wrong_field("request_id", "request_id must be a string"));
  switch (core.abort_job({.id = id->text, .owner = owner_of(call.key)})) {
    case Core::Abort::unknown:
      break;
    case Core::Abort::pending:
      return json_response(R"({"status":"pending"})");
    case Core::Abort::done:
      return json_response(R"({"status":"aborted"})");
  }
  return refuse(ErrorStyle::openai, 404, "not_found", "no running request has this request_id");
}

Response answer_metrics(Core& core, const RoutedRequest& /*call*/) {
  Response response{.content_type = "text/plain; version=0.0.4; charset=utf-8"};
  response.body = metrics_page(core);
  return response;
}

Response answer_debug_cache(Core& core, const RoutedRequest& call) {
  const api::Model& model = core.serving()->model;
  std::string report;
  if (model.journal)
    report = model.journal->explain(call.rest, client_of(call.key), model.tokenizer,
                                    model.limits.scheduler.tokens_per_page);
  if (report.empty())
    return refuse(ErrorStyle::openai, 404, "not_found",
                  "no recent request has this id; use an answer's `id` or x-request-id header");
  return json_response(std::move(report));
}

Response answer_root(Core& /*core*/, const RoutedRequest& /*call*/) {
  Response response{.status = 302, .content_type = "text/plain; charset=utf-8"};
  response.body = "the dashboard is at /ui\n";
  response.fields.emplace_back("Location", "/ui");
  return response;
}

Response answer_ui(Core& /*core*/, const RoutedRequest& /*call*/) {
  return dashboard_answer();
}

Response answer_ui_status(Core& core, const RoutedRequest& /*call*/) {
  return json_response(dashboard_status(core));
}

Response answer_ui_history(Core& core, const RoutedRequest& call) {
  std::string json = dashboard_history(core, call.rest);
  if (json.empty())
    return refuse(ErrorStyle::openai, 404, "not_found",
                  "there are samples of 1, 10 and 240 seconds: /ui/history/1");
  return json_response(std::move(json));
}

Response answer_ui_requests(Core& core, const RoutedRequest& call) {
  return json_response(dashboard_requests(core, call.key));
}

// ---- the table

std::vector<Route> make_routes() {
  std::vector<Route> table{
      {"GET", "/health", true, false, answer_readyz, nullptr, nullptr, "200 when ready, else 503"},
      {"GET", "/healthz", true, false, answer_readyz, nullptr, nullptr, "the same as /health"},
      {"GET", "/readyz", true, false, answer_readyz, nullptr, nullptr,
       "200 when ready, else 503 with a JSON body that names the step under way"},
      {"GET", "/livez", true, false, answer_livez, nullptr, nullptr,
       "200 unless the engine has failed"},
      {"GET", "/ping", true, false, answer_readyz, nullptr, nullptr, "as /health"},
      {"POST", "/ping", true, false, answer_readyz, nullptr, nullptr, "as /health"},
      {"GET", "/metrics", true, false, answer_metrics, nullptr, nullptr, "Prometheus"},
      {"GET", "/version", true, false, answer_version, nullptr, nullptr, "the version"},
      {"GET", "/v1/models", false, true, answer_models, nullptr, nullptr, "the served names"},
      {"GET", "/v1/models/*", false, true, answer_one_model, nullptr, nullptr, "one of them"},
      {"GET", "/server_info", false, true, answer_server_info, nullptr, nullptr,
       "sizes and settings"},
      {"GET", "/props", false, true, answer_props, nullptr, nullptr,
       "the same for llama.cpp's clients"},
      {"GET", "/slots", false, true, answer_slots, nullptr, nullptr,
       "llama.cpp's view of the batch: one object a sequence"},
      {"GET", "/load", false, true, answer_load, nullptr, nullptr,
       "numbers of running and waiting requests"},
      {"POST", "/abort_request", false, true, answer_abort, nullptr, nullptr,
       "aborts a request by its id (header x-request-id)"},
      {"GET", "/debug/cache/*", false, true, answer_debug_cache, nullptr, nullptr,
       "why a request's prompt was or was not cached"},
      {"GET", "/", true, false, answer_root, nullptr, nullptr, "redirects to /ui"},
      {"GET", "/openapi.json", true, false, answer_openapi, nullptr, nullptr,
       "this API as OpenAPI 3.1"},
      {"GET", "/docs", true, false, answer_docs, nullptr, nullptr, "the same as a page"},
      {"GET", "/docs/style.css", true, false, answer_docs_style, nullptr, nullptr, "its style"},
      {"GET", "/ui", true, false, answer_ui, nullptr, nullptr, "the dashboard"},
      {"GET", "/ui/status", true, false, answer_ui_status, nullptr, nullptr,
       "whether a key is needed, and the readiness"},
      {"GET", "/ui/history/*", false, true, answer_ui_history, nullptr, nullptr,
       "samples of the last 5 minutes, hour or day"},
      {"GET", "/ui/requests", false, true, answer_ui_requests, nullptr, nullptr,
       "running requests and the last ones that ended"},
      {"GET", "/ui/events", false, true, nullptr, nullptr, nullptr,
       "the dashboard's data, one event per second", dashboard_event},
  };
  for (const Route& route : file_routes()) table.push_back(route);
  for (const api::GenerationEndpoint& endpoint : api::generation_endpoints())
    table.push_back({"POST", endpoint.path, false, true, nullptr, &endpoint, nullptr, ""});
  for (const api::TextEndpoint& endpoint : api::text_endpoints())
    table.push_back({"POST", endpoint.path, false, true, nullptr, nullptr, &endpoint, ""});
  return table;
}

// ---- access

std::shared_ptr<ApiKey> find_key(const ApiKeys& keys, const RequestHead& head) {
  constexpr std::size_t kKeyBytesMax = 1024;
  std::string_view given = head.field("x-api-key");
  const std::string_view authorization = head.field("authorization");
  if (given.empty() && authorization.size() > 7) {
    if (lower_case(authorization.substr(0, 7)) == "bearer ") given = authorization.substr(7);
  }
  if (given.empty() || given.size() > kKeyBytesMax) return nullptr;
  return keys.find(given);
}

/// What is wrong with a request that has no valid key.
std::string about_wrong_key(const RequestHead& head) {
  const std::string_view authorization = head.field("authorization");
  if (!head.field("x-api-key").empty()) return "the API key in x-api-key is wrong";
  if (authorization.empty())
    return "no API key was sent: send Authorization: Bearer KEY, or x-api-key: KEY";
  return lower_case(authorization).starts_with("bearer ") ? "the API key in Authorization is wrong"
                                                          : "Authorization must be Bearer KEY";
}

/// The request headers for Access-Control-Allow-Headers: those of OpenAI's and Anthropic's clients
/// and those that the page asks for.
std::string allowed_fields(const RequestHead& head) {
  std::string allowed =
      "authorization, content-type, x-api-key, x-request-id, openai-organization, openai-project, "
      "anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access";
  for (const char* name : {"lang", "package-version", "os", "arch", "runtime", "runtime-version",
                           "retry-count", "timeout", "read-timeout", "async", "helper-method",
                           "poll-helper", "custom-poll-interval", "raw-response"})
    allowed += fmt::format(", x-stainless-{}", name);
  const std::string known = allowed;
  for (std::string_view rest = head.field("access-control-request-headers"); !rest.empty();) {
    const std::size_t end = rest.find(',');
    const std::string_view name = trimmed(rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (is_token(name) &&
        fmt::format(", {},", known).find(fmt::format(", {},", name)) == std::string::npos)
      allowed += fmt::format(", {}", name);
  }
  return allowed;
}

/// The part of `path` that the route's * stands for, "" where it has none; nothing: another path.
std::optional<std::string_view> match(const Route& route, std::string_view path) {
  const std::size_t star = route.path.find('*');
  if (star == std::string_view::npos)
    return route.path == path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view prefix = route.path.substr(0, star);
  const std::string_view suffix = route.path.substr(star + 1);
  if (path.size() <= prefix.size() + suffix.size() || !path.starts_with(prefix) ||
      !path.ends_with(suffix))
    return std::nullopt;
  return path.substr(prefix.size(), path.size() - prefix.size() - suffix.size());
}

/// The methods of a path for the Allow header; for an unknown path all methods of the server.
std::string allowed_methods(std::string_view path) {
  bool get = false;
  bool post = false;
  bool remove = false;
  for (const Route& route : routes()) {
    if (!match(route, path)) continue;
    get = get || route.method == "GET";
    post = post || route.method == "POST";
    remove = remove || route.method == "DELETE";
  }
  if (!get && !post) return "GET, HEAD, POST, DELETE, OPTIONS";
  return fmt::format("{}{}{}OPTIONS", get ? "GET, HEAD, " : "", post ? "POST, " : "",
                     remove ? "DELETE, " : "");
}

std::optional<Response> refuse_media_type(const Route& route, const RequestHead& head) {
  const std::string encoding = lower_case(head.field("content-encoding"));
  if (!encoding.empty() && encoding != "identity")
    return refuse(style_of(head), 415, "unsupported_media_type",
                  "Content-Encoding is not supported: send the body unencoded");
  const std::string_view type = head.field("content-type");
  const std::string given = lower_case(trimmed(type.substr(0, type.find(';'))));
  if (given == (route.takes_form ? "multipart/form-data" : "application/json")) return {};
  if (route.takes_form)
    return refuse(style_of(head), 415, "unsupported_media_type",
                  "the body must be a form: send Content-Type: multipart/form-data");
  // A web page can send any other type, or none, to another site without asking.
  const bool has_body = head.has("transfer-encoding") ||
                        (head.has("content-length") && head.field("content-length") != "0");
  if (!has_body) return {};
  return refuse(style_of(head), 415, "unsupported_media_type",
                "the body must be JSON: send Content-Type: application/json");
}

}  // namespace

std::span<const Route> routes() {
  static const std::vector<Route> table = make_routes();
  return table;
}

std::string_view client_request_id(const RequestHead& head) {
  const std::string_view id = head.field("x-request-id");
  return api::is_request_id(id) ? id : std::string_view();
}

void add_request_id(const RequestHead& head, std::string_view id, Response& response) {
  response.fields.emplace_back("x-request-id", std::string(id));
  if (style_of(head) == ErrorStyle::anthropic)
    response.fields.emplace_back("request-id", std::string(id));
  if (response.status >= 400) api::name_request(response.body, id);
}

void add_cors(const Core& core, const RequestHead& head, Response& response) {
  const std::string_view origin = head.field("origin");
  if (origin.empty() || !origin_allowed(core.settings(), origin)) return;
  response.fields.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  response.fields.emplace_back("Vary", "Origin");
  response.fields.emplace_back("Access-Control-Expose-Headers",
                               "x-request-id, request-id, retry-after, retry-after-ms, "
                               "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
                               "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
                               "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens");
}

std::variant<const Route*, Response> find_route(Core& core, const RequestHead& head) {
  const Route* route = nullptr;
  bool known = false;
  for (const Route& candidate : routes()) {
    if (!match(candidate, head.path)) continue;
    known = true;
    if (candidate.method == head.method || (candidate.method == "GET" && head.method == "HEAD")) {
      route = &candidate;
      break;
    }
  }
  if (!head.http_1_0 && head.field("host").empty()) {
    Response response =
        refuse(style_of(head), 400, "bad_request", "the Host header field is missing");
    response.close = true;
    return response;
  }
  if (auto why = refuse_host(core.settings(), core.api_keys()->empty(), head))
    return refuse(style_of(head), 403, "forbidden_origin", *std::move(why));
  if (head.method == "OPTIONS") {
    Response response{.status = 204};
    response.fields.emplace_back("Allow", allowed_methods(head.path));
    if (origin_allowed(core.settings(), head.field("origin"))) {
      response.fields.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
      response.fields.emplace_back("Access-Control-Allow-Headers", allowed_fields(head));
      response.fields.emplace_back("Vary", "Access-Control-Request-Headers");
      response.fields.emplace_back("Access-Control-Max-Age", "600");
    }
    return response;
  }
  auto key = key_for(core, route, head);
  if (Response* refused = std::get_if<Response>(&key)) return std::move(*refused);
  if (route == nullptr) {
    const bool method_known = head.method == "GET" || head.method == "HEAD" ||
                              head.method == "POST" || head.method == "PUT" ||
                              head.method == "DELETE" || head.method == "PATCH";
    if (known || !method_known) {
      Response response =
          refuse(style_of(head), 405, "not_found",
                 "this path does not support this method; the Allow header lists those it does");
      response.fields.emplace_back("Allow", allowed_methods(head.path));
      return response;
    }
    return refuse(style_of(head), 404, "not_found", fmt::format("no route for {:.200}", head.path));
  }
  if (route->method == "POST")
    if (std::optional<Response> refused = refuse_media_type(*route, head)) return *refused;
  if (head.has("expect") && lower_case(head.field("expect")) != "100-continue")
    return refuse(style_of(head), 417, "bad_request", "Expect must be 100-continue");
  if (!route->needs_model) return route;
  const Phase phase = core.phase();
  if (core.serving() == nullptr || phase == Phase::failed ||
      (route->generation != nullptr && phase != Phase::ready)) {
    ++core.counters().rejected_not_ready;
    return refuse(style_of(head), 503, "service_unavailable",
                  phase == Phase::draining ? "the server is shutting down; retry on another server"
                  : phase == Phase::failed ? "the engine has failed; restart the server"
                                           : "the model is loading; try again",
                  5);
  }
  return route;
}

std::variant<std::shared_ptr<ApiKey>, Response> key_for(const Core& core,
                                                        const Route* route,
                                                        const RequestHead& head) {
  const std::shared_ptr<const ApiKeys> keys = core.api_keys();
  std::shared_ptr<ApiKey> key = find_key(*keys, head);
  if (key || keys->empty() || (route != nullptr && route->open)) return key;
  return refuse(style_of(head), 401, "invalid_api_key", about_wrong_key(head));
}

Response answer_route(Core& core,
                      const Route& route,
                      const RequestHead& head,
                      std::string_view body,
                      const ApiKey* key) {
  if (route.text == nullptr)
    return route.answer(core, {.head = head,
                               .rest = match(route, head.path).value_or(std::string_view()),
                               .body = body,
                               .key = key});
  Response response;
  api::KeyRules rules;
  if (key != nullptr) rules = [key](api::GenerationRequest& request) { key->apply(request); };
  const api::Refusal refused =
      api::answer_text(*route.text, body, core.serving()->model, rules, response.body);
  return refused ? error_response(error_style(route.path), *refused) : response;
}

}  // namespace koho::server
