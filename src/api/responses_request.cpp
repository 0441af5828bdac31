// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "api/extension_fields.h"
#include "api/fields.h"
#include "api/responses.h"
#include "api/responses_conversation.h"
#include "api/sampling_fields.h"

namespace koho::api {
namespace {

using chat::Json;

/// Fields that are read, and fields that are known and have no effect here.
constexpr std::array<std::string_view, 30> kKnownFields{"model",
                                                        "input",
                                                        "instructions",
                                                        "tools",
                                                        "tool_choice",
                                                        "temperature",
                                                        "top_p",
                                                        "max_output_tokens",
                                                        "text",
                                                        "reasoning",
                                                        "stream",
                                                        "parallel_tool_calls",
                                                        "include",
                                                        "metadata",
                                                        "store",
                                                        "user",
                                                        "truncation",
                                                        "service_tier",
                                                        "prompt_cache_key",
                                                        "safety_identifier",
                                                        "stream_options",
                                                        "top_logprobs",
                                                        "background",
                                                        "previous_response_id",
                                                        "conversation",
                                                        "prompt",
                                                        "max_tool_calls",
                                                        "prompt_cache_retention",
                                                        "request_id",
                                                        "rid"};

/// Refuses the fields that need a server that stores responses or runs tools.
Status refuse_stored(const Json& body) {
  for (const std::string_view name : {"previous_response_id", "conversation", "prompt"})
    if (body.given(name) != nullptr)
      return make_field_error(
          ErrorCode::unsupported, name,
          "{}: not supported: this server stores no responses; send the items of "
          "the conversation as input");
  KOHO_TRY(refuse_mcp_servers(body));
  KOHO_TRY_ASSIGN(const bool background, boolean_or(body, "background", {}, false));
  if (background)
    return make_field_error(ErrorCode::unsupported, "background",
                            "{}: not supported: use \"stream\": true");
  return {};
}

Result<ToolChoice> read_tool_choice(const Json& body) {
  ToolChoice choice;
  KOHO_TRY_ASSIGN(choice.parallel, boolean_or(body, "parallel_tool_calls", {}, true));
  const Json* value = body.given("tool_choice");
  if (value == nullptr) return choice;
  if (value->is_string()) {
    if (value->text == "auto") return choice;
    choice.kind = ToolChoice::Kind::none;
    if (value->text == "none") return choice;
    choice.kind = ToolChoice::Kind::required;
    if (value->text == "required") return choice;
  } else if (const Json* type = value->find("type");
             type != nullptr && *type == Json::string("function")) {
    choice.kind = ToolChoice::Kind::named;
    KOHO_TRY_ASSIGN(const Json* name, required_string(*value, "name", "tool_choice"));
    choice.name = name->text;
    return choice;
  } else if (type != nullptr && *type == Json::string("allowed_tools")) {
    KOHO_TRY(read_allowed_tools(*value, choice));
    return choice;
  }
  return make_field_error(ErrorCode::invalid_argument, "tool_choice",
                          "{}: must be \"auto\", \"none\", \"required\", "
                          "{{\"type\": \"function\", \"name\": …}} or {{\"type\": "
                          "\"allowed_tools\", …}}, found {:.100}",
                          chat::dump_json(*value));
}

/// "auto" may drop items of an input that does not fit; here that is refused either way.
Status read_truncation(const Json& body) {
  const Json* value = body.given("truncation");
  if (value == nullptr || *value == Json::string("auto") || *value == Json::string("disabled"))
    return {};
  return make_field_error(ErrorCode::invalid_argument, "truncation",
                          "{}: must be \"auto\" or \"disabled\", found {:.100}",
                          chat::dump_json(*value));
}

Status read_format(const Json& body, GenerationRequest& request) {
  const Json* text = body.given("text");
  if (text == nullptr) return {};
  if (!text->is_object()) return wrong_kind("text", "an object", text);
  const Json* format = text->given("format");
  if (format == nullptr) return {};
  if (!format->is_object()) return wrong_kind("text.format", "an object", format);
  KOHO_TRY_ASSIGN(const Json* type, required_string(*format, "type", "text.format"));
  request.constraint_field = "text.format";
  if (type->text == "text") return {};
  if (type->text == "json_object") {
    request.constraint = Constraint::json_object();
    return {};
  }
  if (type->text != "json_schema")
    return make_field_error(ErrorCode::invalid_argument, "text.format.type",
                            "{}: must be text, json_object or json_schema, found \"{:.40}\"",
                            std::string_view(type->text));
  const Json* schema = format->find("schema");
  if (schema == nullptr || !schema->is_object())
    return wrong_kind("text.format.schema", "a JSON schema: an object", schema);
  request.constraint = Constraint::json_schema(chat::dump_json(*schema));
  return {};
}

/// Whether to think; nothing: the model's default.
Result<std::optional<bool>> read_reasoning(const Json& body) {
  const Json* reasoning = body.given("reasoning");
  if (reasoning == nullptr) return std::optional<bool>{};
  if (!reasoning->is_object()) return wrong_kind("reasoning", "an object", reasoning);
  KOHO_TRY_ASSIGN(const std::optional<std::string> effort,
                  optional_string(*reasoning, "effort", "reasoning"));
  if (!effort) return std::optional<bool>{};
  constexpr std::array<std::string_view, 7> kEfforts{"none", "minimal", "low", "medium",
                                                     "high", "xhigh",   "max"};
  if (std::ranges::find(kEfforts, *effort) == kEfforts.end())
    return make_field_error(ErrorCode::invalid_argument, "reasoning.effort",
                            "{}: must be none, minimal, low, medium, high, xhigh or max, "
                            "found \"{:.40}\"",
                            std::string_view(*effort));
  return std::optional<bool>{*effort != "none"};
}

Error no_logprobs(std::string_view field) {
  return make_field_error(ErrorCode::unsupported, field,
                          "{}: not supported by /v1/responses: use /v1/chat/completions");
}

/// Whether reasoning items carry encrypted_content, which a client can send back as it is.
Result<bool> wants_sealed_reasoning(const Json& body) {
  const Json* include = body.given("include");
  if (include == nullptr) return false;
  if (!include->is_array()) return wrong_kind("include", "an array of strings", include);
  bool encoded = false;
  for (std::size_t i = 0; i < include->items.size(); ++i) {
    const Json& item = include->items[i];
    if (item == Json::string("message.output_text.logprobs"))
      return no_logprobs(fmt::format("include[{}]", i));
    encoded = encoded || item == Json::string("reasoning.encrypted_content");
  }
  return encoded;
}

/// The request fields that a response repeats, each after a comma.
std::string echo_of(const Json& body, const GenerationRequest& request) {
  std::string echo;
  const auto add = [&echo](std::string_view name, std::string_view json) {
    echo += fmt::format(R"(,"{}":{})", name, json);
  };
  const auto add_given = [&](std::string_view name, std::string_view otherwise) {
    const Json* value = body.given(name);
    add(name, value != nullptr ? chat::dump_json(*value) : std::string(otherwise));
  };
  add_given("instructions", "null");
  add_given("max_output_tokens", "null");
  add_given("max_tool_calls", "null");
  add_given("metadata", "{}");
  add_given("parallel_tool_calls", "true");
  add("previous_response_id", "null");
  add_given("reasoning", R"({"effort":null,"summary":null})");
  add("service_tier", "\"default\"");
  add("store", "false");
  add("temperature", fmt::format("{}", request.base.sampling.temperature));
  add_given("text", R"({"format":{"type":"text"}})");
  add_given("tool_choice", "\"auto\"");
  add_given("tools", "[]");
  add("top_logprobs", "0");
  add("top_p", fmt::format("{}", request.base.sampling.top_p));
  add("truncation", "\"disabled\"");
  add_given("user", "null");
  return echo;
}

Status read_body(const Json& body, GenerationRequest& request) {
  KOHO_TRY(expect_object(body));
  KOHO_TRY(read_model_name(body, request.model));
  KOHO_TRY(refuse_stored(body));
  KOHO_TRY_ASSIGN(request.conversation, read_responses_conversation(body, request.unknown_fields));
  KOHO_TRY_ASSIGN(request.conversation->enable_thinking, read_reasoning(body));
  KOHO_TRY_ASSIGN(request.tool_choice, read_tool_choice(body));
  KOHO_TRY(read_truncation(body));
  KOHO_TRY(read_format(body, request));
  KOHO_TRY_ASSIGN(request.tokens_max, optional_integer(body, "max_output_tokens", 1,
                                                       std::numeric_limits<std::int32_t>::max()));
  KOHO_TRY(
      read_sampling_numbers(body, kResponsesApi, {"temperature", "top_p"}, request.base.sampling));
  KOHO_TRY_ASSIGN(const std::optional<std::int64_t> top_logprobs,
                  optional_integer(body, "top_logprobs", 0, kTopLogprobsMax));
  if (top_logprobs && *top_logprobs > 0) return no_logprobs("top_logprobs");
  KOHO_TRY_ASSIGN(request.stream, boolean_or(body, "stream", {}, false));
  if (const Json* user = body.given("user"); user != nullptr && user->is_string())
    request.user = user->text;
  KOHO_TRY_ASSIGN(request.output.encoded_reasoning, wants_sealed_reasoning(body));
  for (const std::string& key : body.keys)
    if (std::ranges::find(kKnownFields, key) == kKnownFields.end())
      request.unknown_fields.push_back(key);
  return {};
}

}  // namespace

std::span<const std::string_view> response_field_names() {
  return kKnownFields;
}

bool reads_of_responses(std::string_view name) {
  return std::ranges::find(kKnownFields, name) != kKnownFields.end() || name == "mcp_servers" ||
         reads_extension(name);
}

Refusal read_response(const Json& body, const Model& model, GenerationRequest& request) {
  request.base = model.defaults;
  request.model = model.names.front();
  if (const Status status = read_body(body, request); !status.ok())
    return to_api_error(status.error());
  if (Refusal refused = read_extensions(body, model, request)) return refused;
  if (Refusal refused = refuse_unknown_fields(request, model)) return refused;
  request.echo = echo_of(body, request);
  if (!model.serves(request.model))
    return ApiError{.status = 404,
                    .code = "model_not_found",
                    .param = "model",
                    .message = fmt::format("the model \"{:.200}\" does not exist", request.model)};
  request.model = model.answer_name(request.model);
  return settle_conversation(request, model);
}

}  // namespace koho::api
