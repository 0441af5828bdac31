// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: reads requests, writes answers as one JSON body or as Anthropic's
// sequence of server-sent events. Fields: docs/clients.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "api/error.h"
#include "api/generation.h"
#include "api/responder.h"
#include "chat/json.h"

namespace koho::api {

/// Whether read_messages() reads the body's member `name`.
bool reads_of_messages(std::string_view name);
/// The fields of Anthropic's API.
std::span<const std::string_view> message_field_names();

/// Reads the body of POST /v1/messages: everything but encode(). Any model named "claude-..." is
/// served. A request without `thinking` does not think, as with Anthropic's own server.
Refusal read_messages(const chat::Json& body, const Model& model, GenerationRequest& request);

/// The same for POST /v1/messages/count_tokens, which needs no max_tokens.
Refusal read_message_count(const chat::Json& body, const Model& model, GenerationRequest& request);

/// Replaces encode()'s message about a long prompt by Anthropic's, "prompt is too long: X tokens >
/// Y maximum", on which clients compact their conversation. Other errors stay as they are.
ApiError reword_for_anthropic(ApiError error, const GenerationRequest& request, const Model& model);

/// Writes the answer to a request of read_messages(), which need not outlive it.
std::unique_ptr<Responder> respond_messages(const GenerationRequest& request, const Model& model);

/// Answers the body of POST /v1/messages/count_tokens: {"input_tokens": N}, N as a Messages request
/// with this body would use.
Refusal count_message_tokens(const chat::Json& body,
                             const Model& model,
                             const KeyRules& key,
                             std::string& out);

}  // namespace koho::api
