// SPDX-License-Identifier: Apache-2.0
// The fields that OpenAI's two completion APIs and the native one share: sampling, stops, lengths,
// scheduling, output. vLLM's names where OpenAI has none.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "api/field_table.h"
#include "api/generation.h"

namespace koho::api {

/// What the readers of a table work on.
struct RequestBuilder {
  const Model& model;
  GenerationRequest& request;
  bool stream_options_given = false;
  bool logprobs_wanted = false;                // chat: "logprobs": true
  std::optional<std::int32_t> top_logprobs{};  // chat
  bool ignore_eos = false;
  std::vector<Token> stop_token_ids{};
  std::optional<std::int64_t> max_completion_tokens{};  // wins over max_tokens
};

using RequestField = Field<RequestBuilder>;

/// The shared table.
std::span<const RequestField> shared_fields();

/// Refuses a member of the object in field `name` that nothing reads, where the model is strict
/// about fields.
Refusal check_members(const chat::Json& object,
                      std::string_view name,
                      std::initializer_list<std::string_view> known,
                      const Model& model);

/// Reads the shared fields and those of `own`; refuses what koho does not have by name, and notes
/// fields that nobody knows (an error if the model's strict_fields say so).
Refusal read_body(const chat::Json& body,
                  std::span<const RequestField> own,
                  RequestBuilder& builder);

/// Whether an API with these fields of its own reads the body's member `name`, or refuses it.
bool reads_field(std::string_view name, std::span<const RequestField> own);

/// Reads "model" and checks that it is served.
Refusal read_model(const chat::Json& body, const Model& model, GenerationRequest& request);

/// A number of tokens, at least `low`.
Refusal read_length(const FieldValue& value, std::int32_t low, std::optional<std::int64_t>& target);

/// Settles what depends on several fields: end tokens, lengths. Called after read_body.
Refusal settle(RequestBuilder& builder);

}  // namespace koho::api
