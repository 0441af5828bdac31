// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "api/anthropic.h"
#include "api/anthropic_conversation.h"
#include "api/extension_fields.h"
#include "api/fields.h"
#include "api/sampling_fields.h"

namespace koho::api {
namespace {

using chat::Json;

/// Fields that are read, and fields that are known and have no effect here.
constexpr std::array<std::string_view, 25> kKnownFields{"model",
                                                        "messages",
                                                        "system",
                                                        "max_tokens",
                                                        "metadata",
                                                        "stop_sequences",
                                                        "stream",
                                                        "temperature",
                                                        "thinking",
                                                        "tool_choice",
                                                        "tools",
                                                        "top_k",
                                                        "top_p",
                                                        "cache_control",
                                                        "service_tier",
                                                        "container",
                                                        "mcp_servers",
                                                        "betas",
                                                        "context_management",
                                                        "inference_geo",
                                                        "output_config",
                                                        "output_format",
                                                        "anthropic_version",
                                                        "request_id",
                                                        "rid"};

Status read_stop_sequences(const Json& body, std::vector<std::string>& stops) {
  const Json* list = body.given("stop_sequences");
  if (list == nullptr) return {};
  if (!list->is_array()) return wrong_kind("stop_sequences", "an array of strings", list);
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string field = fmt::format("stop_sequences.{}", i);
    const Json& stop = list->items[i];
    if (!stop.is_string()) return wrong_kind(field, "a string", &stop);
    if (stop.text.empty())
      return make_field_error(ErrorCode::invalid_argument, field, "{}: must not be empty");
    stops.push_back(stop.text);
  }
  return {};
}

/// Whether the model should think; sets the largest number of reasoning tokens, and whether the
/// client gets their text.
Result<bool> read_thinking(const Json& body, GenerationRequest& request) {
  const Json* thinking = body.given("thinking");
  if (thinking == nullptr) return false;
  if (!thinking->is_object()) return wrong_kind("thinking", "an object", thinking);
  KOHO_TRY_ASSIGN(const Json* type, required_string(*thinking, "type", "thinking"));
  KOHO_TRY_ASSIGN(const std::optional<std::int64_t> budget,
                  optional_integer(*thinking, "budget_tokens", 1,
                                   std::numeric_limits<std::int32_t>::max(), "thinking"));
  if (type->text == "enabled" && budget)
    request.base.reasoning_tokens_max = static_cast<std::int32_t>(*budget);
  const Json* display = thinking->given("display");
  request.output.include_reasoning =
      display == nullptr || !display->is_string() || display->text != "omitted";
  if (type->text == "enabled" || type->text == "adaptive") return true;
  if (type->text == "disabled") return false;
  return make_field_error(ErrorCode::invalid_argument, "thinking.type",
                          "{}: must be enabled, adaptive or disabled, found \"{:.40}\"",
                          std::string_view(type->text));
}

Result<ToolChoice> read_tool_choice(const Json& body) {
  ToolChoice choice;
  const Json* given_choice = body.given("tool_choice");
  if (given_choice == nullptr) return choice;
  if (!given_choice->is_object()) return wrong_kind("tool_choice", "an object", given_choice);
  KOHO_TRY_ASSIGN(const Json* type, required_string(*given_choice, "type", "tool_choice"));
  KOHO_TRY_ASSIGN(const bool one_call,
                  boolean_or(*given_choice, "disable_parallel_tool_use", "tool_choice", false));
  choice.parallel = !one_call;
  if (type->text == "auto") {
    choice.kind = ToolChoice::Kind::automatic;
  } else if (type->text == "none") {
    choice.kind = ToolChoice::Kind::none;
  } else if (type->text == "any") {
    choice.kind = ToolChoice::Kind::required;
  } else if (type->text == "tool") {
    choice.kind = ToolChoice::Kind::named;
    KOHO_TRY_ASSIGN(const Json* name, required_string(*given_choice, "name", "tool_choice"));
    choice.name = name->text;
  } else {
    return make_field_error(ErrorCode::invalid_argument, "tool_choice.type",
                            "{}: must be auto, any, tool or none, found \"{:.40}\"",
                            std::string_view(type->text));
  }
  return choice;
}

Status read_sampling(const Json& body, Request& base) {
  KOHO_TRY(
      read_sampling_numbers(body, kMessagesApi, {"temperature", "top_p", "top_k"}, base.sampling));
  return read_stop_sequences(body, base.stop_strings);
}

/// Structured output: output_config.format, or its older name output_format.
Status read_output_format(const Json& body, GenerationRequest& request) {
  std::string field = "output_format";
  const Json* format = body.given(field);
  if (const Json* config = body.given("output_config")) {
    if (!config->is_object()) return wrong_kind("output_config", "an object", config);
    if (const Json* inner = config->given("format")) {
      if (format != nullptr)
        return make_field_error(ErrorCode::invalid_argument, "output_format",
                                "{}: give only one of output_format and output_config.format");
      format = inner;
      field = "output_config.format";
    }
  }
  if (format == nullptr) return {};
  if (!format->is_object()) return wrong_kind(field, "an object", format);
  KOHO_TRY_ASSIGN(const Json* type, required_string(*format, "type", field));
  if (type->text != "json_schema")
    return make_field_error(ErrorCode::invalid_argument, field + ".type",
                            "{}: \"{:.40}\" is not json_schema", std::string_view(type->text));
  const Json* schema = format->find("schema");
  if (schema == nullptr || !schema->is_object())
    return wrong_kind(field + ".schema", "a JSON schema: an object", schema);
  request.constraint = Constraint::json_schema(chat::dump_json(*schema));
  request.constraint_field = field;
  return {};
}

Status read_body(const Json& body, bool count_only, GenerationRequest& request) {
  KOHO_TRY(expect_object(body));
  KOHO_TRY(read_model_name(body, request.model));
  KOHO_TRY_ASSIGN(request.tokens_max, optional_integer(body, "max_tokens", 1,
                                                       std::numeric_limits<std::int32_t>::max()));
  if (count_only) {
    request.tokens_max.reset();
  } else if (!request.tokens_max) {
    return make_field_error(ErrorCode::invalid_argument, "max_tokens", "{}: Field required");
  }
  KOHO_TRY(refuse_mcp_servers(body));
  KOHO_TRY_ASSIGN(request.conversation, read_anthropic_conversation(body));
  KOHO_TRY_ASSIGN(request.conversation->enable_thinking, read_thinking(body, request));
  KOHO_TRY_ASSIGN(request.tool_choice, read_tool_choice(body));
  KOHO_TRY(read_sampling(body, request.base));
  KOHO_TRY(read_output_format(body, request));
  KOHO_TRY_ASSIGN(request.stream, boolean_or(body, "stream", {}, false));
  if (const Json* metadata = body.given("metadata"))
    if (const Json* user = metadata->given("user_id"); user != nullptr && user->is_string())
      request.user = user->text;
  if (count_only) request.stream = false;
  for (const std::string& key : body.keys)
    if (std::ranges::find(kKnownFields, key) == kKnownFields.end())
      request.unknown_fields.push_back(key);
  return {};
}

Refusal read_for(const Json& body,
                 const Model& model,
                 bool count_only,
                 GenerationRequest& request) {
  request.base = model.defaults;
  request.model = model.names.front();
  if (const Status status = read_body(body, count_only, request); !status.ok())
    return to_api_error(status.error());
  if (Refusal refused = read_extensions(body, model, request)) return refused;
  if (Refusal refused = refuse_unknown_fields(request, model)) return refused;
  constexpr std::size_t kNameBytesMax = 1024;  // answers have it
  const bool claude = request.model.starts_with("claude-") && request.model.size() <= kNameBytesMax;
  if (!claude && !model.serves(request.model))
    return ApiError{.status = 404,
                    .code = "model_not_found",
                    .param = "model",
                    .message = fmt::format("model: {:.200}", std::string_view(request.model))};
  request.model = model.answer_name(request.model);
  return settle_conversation(request, model);
}

}  // namespace

std::span<const std::string_view> message_field_names() {
  return kKnownFields;
}

bool reads_of_messages(std::string_view name) {
  return std::ranges::find(kKnownFields, name) != kKnownFields.end() || reads_extension(name);
}

Refusal read_messages(const Json& body, const Model& model, GenerationRequest& request) {
  return read_for(body, model, false, request);
}

Refusal read_message_count(const Json& body, const Model& model, GenerationRequest& request) {
  return read_for(body, model, true, request);
}

Refusal count_message_tokens(const Json& body,
                             const Model& model,
                             const KeyRules& key,
                             std::string& out) {
  GenerationRequest request;
  if (Refusal refused = read_message_count(body, model, request)) return refused;
  if (key) key(request);
  // A prompt that is longer than the context can still be counted.
  if (Refusal refused = encode(request, model, "messages");
      refused && refused->code != "context_length_exceeded")
    return refused;
  fmt::format_to(std::back_inserter(out), R"({{"input_tokens":{}}})",
                 request.prompt_tokens.value_or(0));
  return {};
}

ApiError reword_for_anthropic(ApiError error,
                              const GenerationRequest& request,
                              const Model& model) {
  if (error.code != "context_length_exceeded" || !request.prompt_tokens) return error;
  const std::int64_t prompt = *request.prompt_tokens;
  const std::int64_t context = model.context_max();
  const std::int64_t answer = request.tokens_max.value_or(1);
  if (prompt >= context) {
    error.message = fmt::format("prompt is too long: {} tokens > {} maximum", prompt, context - 1);
  } else {
    // Clients parse the numbers from this sentence and retry with less.
    error.message = fmt::format(
        "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length "
        "or `max_tokens` and try again",
        prompt, answer, context);
  }
  return error;
}

}  // namespace koho::api
