// SPDX-License-Identifier: Apache-2.0
#include "api/shared_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_set>
#include <xxhash.h>

#include <fmt/core.h>

#include "base/text.h"
#include "sampling/output_record.h"

namespace koho::api {
namespace {

using chat::Json;
using Value = FieldValue;

constexpr std::int32_t kTopKMax = 1'000'000;
constexpr std::int32_t kChoicesMax = 128;
constexpr std::size_t kStopStringsMax = 4;
constexpr std::int32_t kDeadlineSecondsMax = 86'400;

Refusal read_logit_bias(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object of token ids and numbers");
  const auto entries = value.json.keys.size();
  if (entries > static_cast<std::size_t>(kLogitBiasMax))
    return wrong_field(value.name, fmt::format("logit_bias may have {} entries, found {}",
                                               kLogitBiasMax, entries));
  for (std::size_t i = 0; i < entries; ++i) {
    const std::string& key = value.json.keys[i];
    const auto token = parse_integer<std::int32_t>(key);
    if (!token || *token < 0 || *token >= builder.model.limits.vocabulary)
      return wrong_field(value.name,
                         fmt::format("logit_bias: \"{:.40}\" is no token id; there are "
                                     "0..{}",
                                     std::string_view(key), builder.model.limits.vocabulary - 1));
    double bias = 0.0;
    if (Refusal refused =
            read_number({.name = value.name, .json = value.json.items[i]}, -100.0, 100.0, bias))
      return refused;
    builder.request.base.sampling.logit_bias.emplace_back(*token, static_cast<float>(bias));
  }
  return {};
}

Refusal read_stream_options(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object");
  builder.stream_options_given = true;
  OutputOptions& output = builder.request.output;
  for (const auto& [name, target] :
       {std::pair{"include_usage", &output.include_usage},
        std::pair{"continuous_usage_stats", &output.usage_in_every_chunk}}) {
    const Json* json = value.json.given(name);
    if (json == nullptr) continue;
    const std::string field = fmt::format("stream_options.{}", name);
    if (Refusal refused = read_boolean({.name = field, .json = *json}, *target)) return refused;
  }
  return {};
}

/// As vLLM has it: each word as a text begins with it, and behind a space.
Refusal read_bad_words(const Value& value, RequestBuilder& builder) {
  constexpr std::size_t kWordsMax = 256;
  std::vector<std::string> words;
  if (!value.json.is_array()) return must_be(value, "an array of strings");
  if (value.json.items.empty()) return {};
  if (Refusal refused = read_texts(value, kWordsMax, 1024, words)) return refused;
  if (builder.model.tokenizer == nullptr)
    return wrong_field(value.name, "bad_words needs a model with a tokenizer.json");
  for (const std::string& word : words)
    for (const std::string_view before : {"", " "}) {
      Result<std::vector<Token>> ids = builder.model.tokenizer->encode(std::string(before) + word);
      if (!ids.ok()) return wrong_field(value.name, ids.error().message);
      builder.request.base.banned_sequences.push_back(std::move(ids).value());
    }
  return {};
}

/// Single tokens, and arrays of tokens that end the answer where they come in this order.
Refusal read_stops(const Value& value, RequestBuilder& builder) {
  const std::size_t own = builder.model.defaults.stop_tokens.size();  // the model's come first
  const auto most = static_cast<std::size_t>(builder.model.limits.stop_tokens_max);
  const std::size_t stops_max = most - std::min(own, most);
  if (!value.json.is_array()) return must_be(value, "an array of token ids and of arrays of them");
  if (value.json.items.size() > stops_max)
    return wrong_field(value.name, fmt::format("{} may have {} entries, found {}", value.name,
                                               stops_max, value.json.items.size()));
  builder.request.base.stop_sequences.clear();
  Json single;
  single.kind = Json::Kind::array;
  for (const Json& item : value.json.items) {
    if (!item.is_array()) {
      single.items.push_back(item);
      continue;
    }
    std::vector<Token>& sequence = builder.request.base.stop_sequences.emplace_back();
    if (Refusal refused =
            read_token_ids({.name = value.name, .json = item}, builder.model.limits.vocabulary,
                           std::size_t{OutputRecord::kStopLengthMax}, sequence))
      return refused;
    if (sequence.size() < 2)
      return wrong_field(value.name,
                         fmt::format("an array in {} has 2 tokens at least", value.name));
  }
  return read_token_ids({.name = value.name, .json = single}, builder.model.limits.vocabulary,
                        stops_max, builder.stop_token_ids);
}

Refusal read_salt(const Value& value, RequestBuilder& builder) {
  std::string salt;
  if (Refusal refused = read_text(value, salt, 1024)) return refused;
  if (salt.empty()) return wrong_field(value.name, "cache_salt must not be empty");
  const XXH128_hash_t hash = XXH3_128bits(salt.data(), salt.size());
  builder.request.base.salt = {.low = hash.low64, .high = hash.high64};
  return {};
}

Refusal read_deadline(const Value& value, RequestBuilder& builder) {
  double seconds = 0.0;
  if (Refusal refused = read_number(value, 0.0, kDeadlineSecondsMax, seconds, /*above_low=*/true))
    return refused;
  builder.request.base.deadline_us =
      std::max<std::int64_t>(static_cast<std::int64_t>(seconds * 1e6), 1);
  return {};
}

void constrain(RequestBuilder& builder, std::string_view field, Constraint constraint) {
  builder.request.constraint = std::move(constraint);
  builder.request.constraint_field = field;
}

Refusal read_schema(const Value& value, const Json* schema, RequestBuilder& builder) {
  if (schema == nullptr || (!schema->is_object() && schema->kind != Json::Kind::boolean))
    return wrong_field(value.name,
                       fmt::format("{}: the JSON schema is missing or no object", value.name),
                       "unsupported_schema");
  constrain(builder, value.name, Constraint::json_schema(chat::dump_json(*schema)));
  return {};
}

Refusal read_response_format(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object");
  const Json* type = value.json.find("type");
  if (type == nullptr || !type->is_string())
    return wrong_field(value.name, "response_format.type must be a string");
  // A structural tag is read whole by the grammar.
  if (type->text != "structural_tag")
    if (Refusal refused =
            check_members(value.json, value.name, {"type", "json_schema", "schema"}, builder.model))
      return refused;
  if (type->text == "text") return {};
  if (type->text == "json_object") {
    // As llama-server has it: a schema may stand beside it.
    if (const Json* schema = value.json.given("schema")) return read_schema(value, schema, builder);
    constrain(builder, value.name, Constraint::json_object());
    return {};
  }
  if (type->text == "json_schema") {
    const Json* wrapped = value.json.find("json_schema");
    if (wrapped != nullptr)
      if (Refusal refused =
              check_members(*wrapped, "response_format.json_schema",
                            {"name", "description", "schema", "strict"}, builder.model))
        return refused;
    return read_schema(
        value, wrapped == nullptr ? value.json.find("schema") : wrapped->find("schema"), builder);
  }
  if (type->text == "structural_tag") {
    constrain(builder, value.name, Constraint::structural_tag(chat::dump_json(value.json)));
    return {};
  }
  return wrong_field(value.name, fmt::format("response_format.type \"{:.40}\" is none of text, "
                                             "json_object, json_schema, structural_tag",
                                             std::string_view(type->text)));
}

/// A member of vLLM's structured_outputs, under whatever name it came.
Refusal read_structure(std::string_view member, const Value& value, RequestBuilder& builder) {
  if (builder.request.constraint)
    return wrong_field(value.name, fmt::format("{}: the answer is constrained by {} already",
                                               value.name, builder.request.constraint_field));
  if (member == "json") {
    if (!value.json.is_string()) return read_schema(value, &value.json, builder);
    const Result<Json> parsed = chat::parse_json(value.json.text);
    if (!parsed.ok())
      return wrong_field(value.name, fmt::format("{}: {}", value.name, parsed.error().message),
                         "unsupported_schema");
    return read_schema(value, &*parsed, builder);
  }
  if (member == "choice") {
    std::vector<std::string> choices;
    if (!value.json.is_array() || value.json.items.empty())
      return must_be(value, "an array of strings");
    if (Refusal refused = read_texts(value, 10'000, 1U << 16U, choices)) return refused;
    constrain(builder, value.name, Constraint::choice(std::move(choices)));
    return {};
  }
  if (member == "json_object") {
    bool on = false;
    if (Refusal refused = read_boolean(value, on)) return refused;
    if (on) constrain(builder, value.name, Constraint::json_object());
    return {};
  }
  if (member == "structural_tag" && value.json.is_object()) {
    constrain(builder, value.name, Constraint::structural_tag(chat::dump_json(value.json)));
    return {};
  }
  std::string text;
  if (Refusal refused = read_text(value, text, 1U << 16U)) return refused;
  if (member == "structural_tag") {
    constrain(builder, value.name, Constraint::structural_tag(std::move(text)));
    return {};
  }
  constrain(
      builder, value.name,
      member == "regex" ? Constraint::regex(std::move(text)) : Constraint::ebnf(std::move(text)));
  return {};
}

Refusal read_structured_outputs(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object");
  bool compact = false;
  for (std::size_t i = 0; i < value.json.keys.size(); ++i) {
    const std::string& member = value.json.keys[i];
    const Json& json = value.json.items[i];
    if (json.is_null()) continue;
    const std::string field = fmt::format("structured_outputs.{:.100}", std::string_view(member));
    if (member == "disable_any_whitespace" || member == "disable_fallback") {
      bool on = false;
      if (Refusal refused = read_boolean({.name = field, .json = json}, on)) return refused;
      compact = compact || (on && member == "disable_any_whitespace");
      continue;  // there is nothing to fall back on
    }
    const bool known = member == "json" || member == "regex" || member == "choice" ||
                       member == "grammar" || member == "json_object" || member == "structural_tag";
    if (!known)
      return wrong_field(value.name, fmt::format("{} is none of json, regex, choice, grammar, "
                                                 "json_object, structural_tag, "
                                                 "disable_any_whitespace, disable_fallback",
                                                 field));
    if (Refusal refused = read_structure(member, {.name = field, .json = json}, builder))
      return refused;
  }
  if (builder.request.constraint) builder.request.constraint->compact = compact;
  return {};
}

/// vLLM's old names, with "guided_" before.
Refusal read_guided(const Value& value, RequestBuilder& builder) {
  return read_structure(value.name.substr(std::string_view("guided_").size()), value, builder);
}

Refusal read_user(const Value& value, RequestBuilder& builder) {
  return read_text(value, builder.request.user, 1024);
}

/// The server has read it, with the body, for every endpoint.
Refusal read_id(const Value& /*value*/, RequestBuilder& /*builder*/) {
  return {};
}

// Several names for one thing: the last in the table wins.
constexpr RequestField kShared[] = {
    {"temperature", "number in 0..2; 0 is greedy",
     [](const Value& v, RequestBuilder& d) {
       return read_number(v, 0.0, 2.0, d.request.base.sampling.temperature);
     }},
    {"top_p", "number above 0, at most 1",
     [](const Value& v, RequestBuilder& d) {
       return read_number(v, 0.0, 1.0, d.request.base.sampling.top_p, /*above_low=*/true);
     }},
    {"min_p", "number in 0..1",
     [](const Value& v, RequestBuilder& d) {
       return read_number(v, 0.0, 1.0, d.request.base.sampling.min_p);
     }},
    {"top_k", "integer in -1..1000000; 0 and -1 are off",
     [](const Value& v, RequestBuilder& d) {
       return read_integer(v, std::int64_t{-1}, std::int64_t{kTopKMax},
                           d.request.base.sampling.top_k);
     }},
    {"repetition_penalty", "number above 0, at most 2",
     [](const Value& v, RequestBuilder& d) {
       return read_number(v, 0.0, 2.0, d.request.base.sampling.repetition_penalty,
                          /*above_low=*/true);
     }},
    {"frequency_penalty", "number in -2..2",
     [](const Value& v, RequestBuilder& d) {
       return read_number(v, -2.0, 2.0, d.request.base.sampling.frequency_penalty);
     }},
    {"presence_penalty", "number in -2..2",
     [](const Value& v, RequestBuilder& d) {
       return read_number(v, -2.0, 2.0, d.request.base.sampling.presence_penalty);
     }},
    {"seed", "64-bit integer: same seed, same text",
     [](const Value& v, RequestBuilder& d) {
       std::int64_t seed = 0;
       if (Refusal refused = read_integer(v, std::numeric_limits<std::int64_t>::min(),
                                          std::numeric_limits<std::int64_t>::max(), seed))
         return refused;
       d.request.base.sampling.seed = seed;
       return Refusal{};
     }},
    {"logit_bias", "object: token id to number in -100..100, at most 1024", read_logit_bias},
    {"allowed_token_ids", "array of token ids: no other is sampled",
     [](const Value& v, RequestBuilder& d) -> Refusal {
       if (v.json.is_array() && v.json.items.empty())
         return wrong_field(v.name, "allowed_token_ids must not be empty");
       return read_token_ids(v, d.model.limits.vocabulary,
                             static_cast<std::size_t>(d.model.limits.vocabulary),
                             d.request.base.allowed_tokens);
     }},
    {"bad_words", "array of at most 256 texts that do not come", read_bad_words},
    {"thinking_token_budget", "integer from 0: the thoughts end after so many tokens",
     [](const Value& v, RequestBuilder& d) {
       return read_integer(v, 0, std::numeric_limits<std::int32_t>::max(),
                           d.request.base.reasoning_tokens_max);
     }},
    {"n", "integer in 1..128: so many answers",
     [](const Value& v, RequestBuilder& d) {
       const std::int32_t most = std::min(kChoicesMax, d.model.limits.choices_max);
       return read_integer(v, 1, most, d.request.base.choices);
     }},
    {"min_tokens", "integer from 0: no end before so many tokens",
     [](const Value& v, RequestBuilder& d) {
       return read_integer(v, 0, d.model.limits.scheduler.context_max, d.request.base.min_tokens);
     }},
    {"stop", "string, or array of at most 4",
     [](const Value& v, RequestBuilder& d) {
       return read_texts(v, kStopStringsMax,
                         static_cast<std::size_t>(d.model.limits.stop_string_bytes_max),
                         d.request.base.stop_strings);
     }},
    {"stop_token_ids",
     "array of token ids; an array of 2 to 16 among them ends the answer by its order", read_stops},
    {"include_stop_str_in_output", "boolean: the matched stop stays in the text",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.base.include_stop);
     }},
    {"no_stop_trim", "the same, as SGLang calls it",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.base.include_stop);
     }},
    {"ignore_eos", "boolean: the model's own end tokens do not end the answer",
     [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.ignore_eos); }},
    {"skip_special_tokens", "boolean: special tokens are left out of the text",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.output.skip_special_tokens);
     }},
    {"return_token_ids", "boolean: prompt and answer as ids, too",
     [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.request.output.token_ids); }},
    {"return_tokens_as_token_ids", "boolean: logprobs name tokens \"token_id:7\"",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.output.tokens_as_ids);
     }},
    {"timings", "boolean: a block of timings with the answer",
     [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.request.output.timings); }},
    {"stream", "boolean",
     [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.request.stream); }},
    {"stream_options", "object: include_usage, continuous_usage_stats; with stream only",
     read_stream_options},
    {"truncate_prompt_tokens", "integer from 1: keep the prompt's last tokens",
     [](const Value& v, RequestBuilder& d) {
       std::int32_t tokens = 0;
       if (Refusal refused = read_integer(v, 1, std::numeric_limits<std::int32_t>::max(), tokens))
         return refused;
       d.request.truncate_to = tokens;
       return Refusal{};
     }},
    {"priority", "integer in 0..7; 0 is served first",
     [](const Value& v, RequestBuilder& d) {
       return read_integer(v, 0, kPriorities - 1, d.request.base.priority);
     }},
    {"cache_salt", "string: prefixes are shared under the same salt only", read_salt},
    {"timeout", "seconds after which the request ends, with an error", read_deadline},
    {"request_id",
     "string of 1..128 visible characters: the request's name; header X-Request-Id wins", read_id},
    {"rid", "the same, as SGLang calls it", read_id},
    {"user", "string of at most 1024 bytes", read_user},
    {"response_format", "object: type text, json_object, json_schema or structural_tag",
     read_response_format},
    {"structured_outputs",
     "object: one of json, regex, choice, grammar, json_object, structural_tag; "
     "disable_any_whitespace, disable_fallback",
     read_structured_outputs},
    {"guided_json", "structured_outputs.json, as it was called", read_guided},
    {"guided_regex", "structured_outputs.regex, as it was called", read_guided},
    {"guided_choice", "structured_outputs.choice, as it was called", read_guided},
    {"guided_grammar", "structured_outputs.grammar, as it was called", read_guided},
    {"json_schema", "structured_outputs.json, as SGLang calls it",
     [](const Value& v, RequestBuilder& d) { return read_structure("json", v, d); }},
    {"regex", "structured_outputs.regex, as SGLang calls it",
     [](const Value& v, RequestBuilder& d) { return read_structure("regex", v, d); }},
    {"ebnf", "structured_outputs.grammar, as SGLang calls it",
     [](const Value& v, RequestBuilder& d) { return read_structure("grammar", v, d); }},
};

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

}  // namespace

std::span<const RequestField> shared_fields() {
  return kShared;
}

Refusal check_members(const Json& object,
                      std::string_view name,
                      std::initializer_list<std::string_view> known,
                      const Model& model) {
  if (!model.strict_fields) return {};
  for (const std::string& key : object.keys) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string field = fmt::format("{}.{:.100}", name, std::string_view(key));
    return wrong_field(field, fmt::format("{} is no field of this API", field),
                       "unsupported_parameter");
  }
  return {};
}

Refusal read_length(const FieldValue& value,
                    std::int32_t low,
                    std::optional<std::int64_t>& target) {
  std::int32_t length = 0;
  if (Refusal refused = read_integer(value, low, std::numeric_limits<std::int32_t>::max(), length))
    return refused;
  target = length;
  return {};
}

Refusal read_model(const chat::Json& body, const Model& model, GenerationRequest& request) {
  const Json* name = body.find("model");
  if (name == nullptr) return wrong_field("model", "model must be a string, found nothing");
  if (Refusal refused = read_text({.name = "model", .json = *name}, request.model, 1024))
    return refused;
  if (model.serves(request.model)) return {};
  return ApiError{.status = 404,
                  .code = "model_not_found",
                  .param = "model",
                  .message = fmt::format("the model \"{:.100}\" is not served; there is \"{}\"",
                                         std::string_view(request.model), model.names.front())};
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
    return std::ranges::any_of(kShared, is_key) || std::ranges::any_of(own, is_key) ||
           std::ranges::find(kIgnored, key) != std::end(kIgnored) ||
           std::ranges::find(kWithoutEffect, key) != std::end(kWithoutEffect) ||
           std::ranges::find(kRefused, key) != std::end(kRefused);
  };
  for (const std::string_view name : kWithoutEffect) {
    const Json* json = builder.model.strict_fields ? body.find(name) : nullptr;
    if (json == nullptr || is_no_op(name, *json)) continue;
    return wrong_field(name, fmt::format("{} has no effect here", name), "unsupported_parameter");
  }
  for (const std::string& key : body.keys) {
    if (known(key)) continue;
    if (builder.model.strict_fields)
      return wrong_field(key,
                         fmt::format("\"{:.100}\" is no field of this API", std::string_view(key)),
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
  if (request.constraint && !(base.allowed_tokens.empty() && base.banned_sequences.empty()))
    return wrong_field(base.allowed_tokens.empty() ? "bad_words" : "allowed_token_ids",
                       "allowed_token_ids and bad_words do not go with a constrained answer");
  return {};
}

}  // namespace koho::api
