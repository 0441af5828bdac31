// SPDX-License-Identifier: Apache-2.0
#include "api/output_fields.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <xxhash.h>

#include <fmt/core.h>

#include "sampling/parameter_table.h"

namespace koho::api {
namespace {

using chat::Json;
using Value = FieldValue;

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
  const ParameterRange range = parameter("timeout").range;
  if (Refusal refused = read_number(value, range.low, range.high, seconds, range.above_low))
    return refused;
  builder.request.base.deadline_us =
      std::max<std::int64_t>(static_cast<std::int64_t>(seconds * 1e6), 1);
  return {};
}

Refusal read_user(const Value& value, RequestBuilder& builder) {
  return read_text(value, builder.request.user, 1024);
}

/// The server has read it, with the body, for every endpoint.
Refusal read_id(const Value& /*value*/, RequestBuilder& /*builder*/) {
  return {};
}

constexpr RequestField kFields[] = {
    {"skip_special_tokens", "boolean: special tokens are left out of the text",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.output.skip_special_tokens);
     }},
    {"return_token_ids", "boolean: also return the token ids of prompt and output",
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
    {"priority", parameter("priority").help,
     [](const Value& v, RequestBuilder& d) {
       return read_integer(v, 0, kPriorities - 1, d.request.base.priority);
     }},
    {"cache_salt", parameter("cache_salt").help, read_salt},
    {"timeout", parameter("timeout").help, read_deadline},
    {"request_id",
     "string of 1..128 visible characters: the request's name; header X-Request-Id wins", read_id},
    {"rid", "SGLang's name for request_id", read_id},
    {"user", "string of at most 1024 bytes", read_user},
};

}  // namespace

std::span<const RequestField> output_fields() {
  return kFields;
}

}  // namespace koho::api
