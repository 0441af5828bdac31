// SPDX-License-Identifier: Apache-2.0
#include "api/shared_fields.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "api/output_fields.h"
#include "api/sampling_fields.h"
#include "api/structured_output_fields.h"

namespace koho::api {
namespace {

using chat::Json;

// What an answer does not depend on.
constexpr std::string_view kIgnored[] = {"model",
                                         "store",
                                         "metadata",
                                         "service_tier",
                                         "prediction",
                                         "modalities",
                                         "prompt_cache_key",
                                         "prompt_cache_retention",
                                         "safety_identifier",
                                         "spaces_between_special_tokens",
                                         "add_special_tokens",
                                         "ignored"};

// Known to clients, without effect here: where the model is strict, a value that asks for something
// is refused.
constexpr std::string_view kWithoutEffect[] = {
    "verbosity",          "web_search_options", "logprobs_mode", "stream_interval", "session_id",
    "kv_transfer_params", "functions",          "function_call", "vllm_xargs",      "lora_path"};

constexpr std::string_view kRefused[] = {
    "prompt_embeds",        "input_embeds",      "audio",          "suffix",
    "chat_template",        "typical_p",         "top_n_sigma",    "mirostat",
    "stop_regex",           "length_penalty",    "documents",      "prompt_logprobs",
    "repetition_detection", "logits_processors", "use_beam_search"};

/// Whether a field with this value asks for nothing: null, false, "", [], {}, or what its number
/// means where peers have it off.
bool is_no_op(std::string_view name, const Json& json) {
  if (json.is_number())
    return ((name == "length_penalty" || name == "typical_p") && json.as_number() == 1.0) ||
           (name == "top_n_sigma" && json.as_number() <= 0.0) ||
           (name == "mirostat" && json.as_number() == 0.0);
  return json.is_null() || (json.kind == Json::Kind::boolean && !json.boolean) ||
         (json.is_string() && json.text.empty()) ||
         ((json.is_array() || json.is_object()) && json.items.empty());
}

/// Keeps of allowed_token_ids what the model can sample, and refuses lists that leave nothing.
/// Lists that leave nothing only later in the answer are the engine's to refuse.
Refusal settle_token_lists(const RequestBuilder& builder) {
  Request& base = builder.request.base;
  if (base.allowed_tokens.empty()) return {};
  const std::int32_t vocabulary = builder.model.tokenizer == nullptr
                                      ? builder.model.limits.vocabulary
                                      : builder.model.tokenizer->vocab_size();
  std::erase_if(base.allowed_tokens, [vocabulary](Token token) { return token >= vocabulary; });
  if (base.allowed_tokens.empty())
    return wrong_field("allowed_token_ids",
                       fmt::format("allowed_token_ids allows no token: ids from {} on are padding "
                                   "of the model's embedding and are never sampled",
                                   vocabulary));
  const auto is_banned = [&](Token token) {
    return std::ranges::find(base.banned_sequences, std::vector<Token>{token}) !=
           base.banned_sequences.end();
  };
  if (std::ranges::all_of(base.allowed_tokens, is_banned))
    return wrong_field("bad_words", "bad_words excludes every token of allowed_token_ids");
  const auto is_kept_out = [&](Token token) {
    return is_banned(token) || std::ranges::find(base.stop_tokens, token) != base.stop_tokens.end();
  };
  if (base.min_tokens > 0 && std::ranges::all_of(base.allowed_tokens, is_kept_out))
    return wrong_field("min_tokens",
                       "min_tokens excludes every token of allowed_token_ids from the start of the "
                       "answer: they are all tokens that end it");
  return {};
}

}  // namespace

std::span<const RequestField> shared_fields() {
  static const std::vector<RequestField> all = [] {
    std::vector<RequestField> fields;
    for (const std::span<const RequestField> part :
         {sampling_fields(), output_fields(), structured_output_fields()})
      fields.insert(fields.end(), part.begin(), part.end());
    return fields;
  }();
  return all;
}

Refusal check_members(const Json& object,
                      std::string_view name,
                      std::initializer_list<std::string_view> known,
                      const Model& model) {
  if (!model.strict_fields) return {};
  for (const std::string& key : object.keys) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string field = fmt::format("{}.{:.100}", name, std::string_view(key));
    return wrong_field(field, fmt::format("{} is not a field of this API", field),
                       "unsupported_parameter");
  }
  return {};
}

Refusal read_length(const FieldValue& value,
                    std::int32_t low,
                    std::optional<std::int64_t>& target) {
  std::int32_t length = 0;
  if (whole_number(value.json) == -1) {
    target.reset();  // as many as fit
    return {};
  }
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  if (Refusal refused = read_integer(value, low, kMost, length)) {
    if (value.json.is_integer())
      refused->message = fmt::format("{} must be in {}..{}, or -1 for as many as fit, found {:.24}",
                                     value.name, low, kMost, std::string_view(value.json.text));
    return refused;
  }
  target = length;
  return {};
}

Refusal read_model(const chat::Json& body, const Model& model, GenerationRequest& request) {
  const Json* name = body.find("model");
  if (name == nullptr || name->is_null()) {
    request.model = model.names.front();
    return {};
  }
  if (Refusal refused = read_text({.name = "model", .json = *name}, request.model, 1024))
    return refused;
  if (!model.serves(request.model))
    return ApiError{
        .status = 404,
        .code = "model_not_found",
        .param = "model",
        .message = fmt::format("the model \"{:.100}\" does not exist; this server serves \"{}\"",
                               std::string_view(request.model), fmt::join(model.names, "\", \""))};
  request.model = model.answer_name(request.model);
  return {};
}

bool reads_field(std::string_view name, std::span<const RequestField> own) {
  return name == "model" ||
         std::ranges::find(shared_fields(), name, &RequestField::name) != shared_fields().end() ||
         std::ranges::find(own, name, &RequestField::name) != own.end() ||
         std::ranges::find(kRefused, name) != std::end(kRefused) ||
         std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect);
}

Refusal read_body(const chat::Json& body,
                  std::span<const RequestField> own,
                  RequestBuilder& builder) {
  for (const std::string_view name : kRefused) {
    const Json* json = body.find(name);
    if (json == nullptr || is_no_op(name, *json)) continue;
    return wrong_field(name, fmt::format("{} is not supported", name), "unsupported_parameter");
  }
  if (Refusal refused = read_fields(body, shared_fields(), builder)) return refused;
  if (Refusal refused = read_fields(body, own, builder)) return refused;
  const auto known = [&](std::string_view key) {
    const auto is_key = [key](const RequestField& field) { return field.name == key; };
    return std::ranges::any_of(shared_fields(), is_key) || std::ranges::any_of(own, is_key) ||
           std::ranges::find(kIgnored, key) != std::end(kIgnored) ||
           std::ranges::find(kWithoutEffect, key) != std::end(kWithoutEffect) ||
           std::ranges::find(kRefused, key) != std::end(kRefused);
  };
  for (const std::string_view name : kWithoutEffect) {
    const Json* json = builder.model.strict_fields ? body.find(name) : nullptr;
    if (json == nullptr || is_no_op(name, *json)) continue;
    return wrong_field(name, fmt::format("{} is not supported: it would have no effect", name),
                       "unsupported_parameter");
  }
  for (const std::string& key : body.keys) {
    if (known(key)) continue;
    if (builder.model.strict_fields)
      return wrong_field(
          key, fmt::format("\"{:.100}\" is not a field of this API", std::string_view(key)),
          "unsupported_parameter");
    builder.request.unknown_fields.push_back(key);
  }
  return {};
}

Refusal settle(RequestBuilder& builder) {
  GenerationRequest& request = builder.request;
  if (builder.stream_options_given && !request.stream)
    return wrong_field("stream_options", "stream_options needs \"stream\": true");
  Request& base = request.base;
  if (builder.ignore_eos) base.stop_tokens.clear();
  base.stop_tokens.insert(base.stop_tokens.end(), builder.stop_token_ids.begin(),
                          builder.stop_token_ids.end());
  base.keep_special = !request.output.skip_special_tokens;
  if (!base.stop_strings.empty() && builder.model.tokenizer == nullptr)
    return wrong_field("stop", "stop needs a model with a tokenizer.json");
  if (builder.max_completion_tokens) request.tokens_max = builder.max_completion_tokens;
  base.sampling.logprobs = request.output.logprobs;
  if (Refusal refused = check_token_lists(request)) return refused;
  return settle_token_lists(builder);
}

}  // namespace koho::api
