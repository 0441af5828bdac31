// SPDX-License-Identifier: Apache-2.0
#include "app/batch_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <fmt/core.h>

#include "app/constraint_fields.h"
#include "app/parser_options.h"
#include "base/text.h"
#include "chat/message.h"
#include "sampling/parameter_table.h"

namespace koho::app {
namespace {

using chat::Json;

/// The fields beside the sampling parameters (sampling/parameter_table.h).
constexpr std::array<std::string_view, 11> kOtherFields{"id",
                                                        "prompt_ids",
                                                        "prompt",
                                                        "allow_special",
                                                        "messages",
                                                        "tools",
                                                        "add_generation_prompt",
                                                        "enable_thinking",
                                                        "clear_thinking",
                                                        "response_format",
                                                        "structured_outputs"};

bool is_field(std::string_view name) {
  const auto is_named = [name](const SamplingParameter& row) {
    return (row.interfaces & kBatchLines) != 0 && name_in(row, kBatchLines) == name;
  };
  return std::ranges::find(kOtherFields, name) != kOtherFields.end() ||
         std::ranges::any_of(kSamplingParameters, is_named);
}

constexpr std::size_t kUnknownNamesMax = 32;  // further names are counted together

Error wrong_kind(std::string_view name, std::string_view expected, const Json& found) {
  return make_error(ErrorCode::invalid_argument, "{} must be {}, found {}", name, expected,
                    chat::kind_name(found.kind));
}

Result<std::int64_t> integer(std::string_view name, const Json& value) {
  if (!value.is_integer()) return wrong_kind(name, "an integer", value);
  const std::optional<std::int64_t> parsed = value.as_integer();
  if (!parsed) return make_error(ErrorCode::invalid_argument, "{} must be a 64-bit integer", name);
  return *parsed;
}

/// Leaves `target` alone if the field is missing.
Status assign(const Json& json, std::string_view name, std::optional<std::int64_t>& target) {
  const Json* value = json.given(name);
  if (value == nullptr) return {};
  KOHO_TRY_ASSIGN(target, integer(name, *value));
  return {};
}

/// For fields whose ranges all lie within 32 bits.
Result<std::int32_t> small_integer(std::string_view name, const Json& value) {
  KOHO_TRY_ASSIGN(const std::int64_t wide, integer(name, value));
  if (wide < std::numeric_limits<std::int32_t>::min() ||
      wide > std::numeric_limits<std::int32_t>::max())
    return make_error(ErrorCode::invalid_argument, "{} must be a 32-bit integer, found {}", name,
                      wide);
  return static_cast<std::int32_t>(wide);
}

Status assign(const Json& json, std::string_view name, std::int32_t& target) {
  const Json* value = json.given(name);
  if (value == nullptr) return {};
  KOHO_TRY_ASSIGN(target, small_integer(name, *value));
  return {};
}

Result<double> number(std::string_view name, const Json& value) {
  if (!value.is_number()) return wrong_kind(name, "a number", value);
  const std::optional<double> parsed = value.as_number();
  if (!parsed) return make_error(ErrorCode::invalid_argument, "{} must be a finite number", name);
  return *parsed;
}

Status assign(const Json& json, std::string_view name, double& target) {
  const Json* value = json.given(name);
  if (value == nullptr) return {};
  KOHO_TRY_ASSIGN(target, number(name, *value));
  return {};
}

Status assign(const Json& json, std::string_view name, bool& target) {
  const Json* value = json.given(name);
  if (value == nullptr) return {};
  if (value->kind != Json::Kind::boolean) return wrong_kind(name, "true or false", *value);
  target = value->boolean;
  return {};
}

Result<std::vector<Token>> token_list(std::string_view name, const Json& value) {
  if (!value.is_array()) return wrong_kind(name, "an array of token ids", value);
  std::vector<Token> tokens;
  tokens.reserve(value.items.size());
  for (const Json& item : value.items) {
    const Result<std::int32_t> token = small_integer(name, item);
    if (!token.ok())
      return make_error(ErrorCode::invalid_argument, "{}[{}] is not a token id", name,
                        tokens.size());
    tokens.push_back(*token);
  }
  return tokens;
}

Result<std::string> id_json(const Json& json) {
  const Json* id = json.given("id");
  if (id == nullptr)
    return make_error(ErrorCode::invalid_argument,
                      "id is missing: it must be a string or an integer");
  if (!id->is_string() && !id->is_integer()) return wrong_kind("id", "a string or an integer", *id);
  return chat::dump_json(*id);
}

}  // namespace

std::string batch_sampling_fields() {
  constexpr std::size_t kColumns = 100;
  std::string text;
  std::size_t column = 0;
  for (const SamplingParameter& row : kSamplingParameters) {
    if ((row.interfaces & kBatchLines) == 0) continue;
    const std::string name = fmt::format("\"{}\"", name_in(row, kBatchLines));
    if (column > 0) text += column + name.size() + 3 > kColumns ? ",\n" : ", ";
    column = column + name.size() + 3 > kColumns ? name.size() : column + 2 + name.size();
    text += name;
  }
  return text + ".\n";
}

BatchLine BatchRequestReader::read(std::string_view line) {
  const Result<Json> json = chat::parse_json(line);
  if (!json.ok()) return {.id = "null", .request = json.error()};
  if (!json->is_object())
    return {
        .id = "null",
        .request = make_error(ErrorCode::invalid_argument, "a line must be a JSON object, found {}",
                              chat::kind_name(json->kind))};
  Result<std::string> id = id_json(*json);
  if (!id.ok()) return {.id = "null", .request = std::move(id).error()};
  note_unknown(*json);
  BatchLine read{.id = std::move(id).value(), .request = Request()};
  read.request = read_request(*json, read.parser);
  return read;
}

void BatchRequestReader::note_unknown(const Json& json) {
  for (const std::string& key : json.keys) {
    if (is_field(key)) continue;
    const bool listed = unknown_.contains(key) || unknown_.size() < kUnknownNamesMax;
    ++unknown_[listed ? key : "others"];
  }
}

Result<Request> BatchRequestReader::read_request(const Json& json, Parser& parser) const {
  Request request = runtime_.default_request();
  flags_.apply(request);
  KOHO_TRY(read_prompt(json, request, parser));
  KOHO_TRY(read_sampling(json, request.sampling));
  KOHO_TRY(read_stops(json, request));
  KOHO_TRY(assign(json, "n", request.choices));
  KOHO_TRY(assign(json, "priority", request.priority));
  KOHO_TRY(read_lengths(json, request));
  KOHO_TRY_ASSIGN(const std::optional<Constraint> constraint, read_constraint(json));
  if (constraint) {
    if (runtime_.text() == nullptr)
      return make_error(ErrorCode::not_found, "structured output needs the model's tokenizer.json");
    KOHO_TRY_ASSIGN(request.grammar, runtime_.grammars().compile(*constraint));
    if (parser) parser->exact_content = true;
  }
  return request;
}

Status BatchRequestReader::read_prompt(const Json& json, Request& request, Parser& parser) const {
  const Json* ids = json.given("prompt_ids");
  const Json* prompt = json.given("prompt");
  const Json* messages = json.given("messages");
  const int kinds = int{ids != nullptr} + int{prompt != nullptr} + int{messages != nullptr};
  if (kinds != 1)
    return make_error(ErrorCode::invalid_argument,
                      "give exactly one of prompt_ids, prompt and messages, found {}", kinds);
  const LoadedText* text = runtime_.text();
  if (ids == nullptr && text == nullptr)
    return make_error(ErrorCode::not_found,
                      "the model has no tokenizer.json: give prompt_ids instead of text");
  if (messages == nullptr)
    for (const char* name : {"tools", "add_generation_prompt", "enable_thinking", "clear_thinking"})
      if (json.given(name) != nullptr)
        return make_error(ErrorCode::invalid_argument, "{} needs messages", name);
  bool special = false;
  KOHO_TRY(assign(json, "allow_special", special));
  if (special && prompt == nullptr)
    return make_error(ErrorCode::invalid_argument, "allow_special needs prompt");

  if (ids != nullptr) {
    KOHO_TRY_ASSIGN(request.prompt, token_list("prompt_ids", *ids));
  } else if (prompt != nullptr) {
    if (!prompt->is_string()) return wrong_kind("prompt", "a string", *prompt);
    KOHO_TRY_ASSIGN(request.prompt, special ? text->tokenizer.encode_with_special(prompt->text)
                                            : text->tokenizer.encode(prompt->text));
  } else {
    KOHO_TRY_ASSIGN(chat::Conversation conversation, chat::read_conversation(json));
    if (json.given("add_generation_prompt") == nullptr) conversation.add_generation_prompt = true;
    if (conversation.messages.empty())
      return make_error(ErrorCode::invalid_argument, "messages must not be empty");
    KOHO_TRY(chat::normalize(conversation));
    KOHO_TRY_ASSIGN(request.prompt, text->encode(conversation));
    parser = parser_options(runtime_, conversation);
  }
  request.starts_in_reasoning = !request.prompt.empty() && request.reasoning_begin >= 0 &&
                                request.prompt.back() == request.reasoning_begin;
  return {};
}

Status BatchRequestReader::read_sampling(const Json& json, SamplingParameters& sampling) const {
  for (const SamplingParameter& row : kSamplingParameters) {
    if (row.number != nullptr) KOHO_TRY(assign(json, row.name, sampling.*row.number));
    if (row.integer == nullptr) continue;
    if (const Json* value = json.given(row.name)) {
      KOHO_TRY_ASSIGN(sampling.*row.integer, integer(row.name, *value));
    }
  }
  KOHO_TRY(assign(json, "seed", sampling.seed));
  if (const Json* value = json.given("logprobs")) {
    KOHO_TRY_ASSIGN(sampling.logprobs, small_integer("logprobs", *value));
  }
  const Json* biases = json.given("logit_bias");
  if (biases == nullptr) return {};
  if (!biases->is_object())
    return wrong_kind("logit_bias", "an object of token ids and numbers", *biases);
  for (std::size_t i = 0; i < biases->keys.size(); ++i) {
    const std::string& key = biases->keys[i];
    const auto token = parse_integer<std::int32_t>(key);
    if (!token)
      return make_error(ErrorCode::invalid_argument, "logit_bias: \"{}\" is not a token id", key);
    KOHO_TRY_ASSIGN(const double bias, number("logit_bias", biases->items[i]));
    sampling.logit_bias.emplace_back(*token, static_cast<float>(bias));
  }
  return {};
}

Status BatchRequestReader::read_stops(const Json& json, Request& request) const {
  bool ignore_eos = flags_.ignore_eos;
  KOHO_TRY(assign(json, "ignore_eos", ignore_eos));
  std::vector<Token> ids = flags_.stop_token_ids;
  if (const Json* value = json.given("stop_token_ids")) {
    // An array among the ids is a stop sequence.
    Json single = *value;
    std::erase_if(single.items, [](const Json& item) { return item.is_array(); });
    KOHO_TRY_ASSIGN(ids, token_list("stop_token_ids", single));
    for (const Json& item : value->items)
      if (item.is_array()) {
        KOHO_TRY_ASSIGN(std::vector<Token> sequence, token_list("stop_token_ids", item));
        request.stop_sequences.push_back(std::move(sequence));
      }
  }
  request.stop_tokens.clear();
  if (!ignore_eos) request.stop_tokens = runtime_.model().stop_ids();
  request.stop_tokens.insert(request.stop_tokens.end(), ids.begin(), ids.end());
  KOHO_TRY(assign(json, name_in(parameter("include_stop_str_in_output"), kBatchLines),
                  request.include_stop));

  if (const Json* value = json.given("stop")) {
    request.stop_strings.clear();
    if (value->is_string()) {
      request.stop_strings.push_back(value->text);
    } else if (value->is_array()) {
      for (const Json& item : value->items) {
        if (!item.is_string()) return wrong_kind("stop", "a string or an array of strings", item);
        request.stop_strings.push_back(item.text);
      }
    } else {
      return wrong_kind("stop", "a string or an array of strings", *value);
    }
  }
  if (!request.stop_strings.empty() && runtime_.text() == nullptr)
    return make_error(ErrorCode::not_found, "stop needs the model's tokenizer.json");
  return {};
}

Status BatchRequestReader::read_lengths(const Json& json, Request& request) const {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  // The flags' max_tokens is cut to the room in the context; the line's own is checked as it is.
  const std::int64_t room = std::max<std::int64_t>(runtime_.sizes().context_max - prompt, 1);
  if (request.max_tokens < 0 || request.max_tokens > room)
    request.max_tokens = static_cast<std::int32_t>(room);
  KOHO_TRY(assign(json, "max_tokens", request.max_tokens));
  return assign(json, "min_tokens", request.min_tokens);
}

}  // namespace koho::app
