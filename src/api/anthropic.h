// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: its requests read, its answers written, as one JSON body or as the
// sequence of server-sent events that its clients follow. What is meant by each field:
// docs/server.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "api/error.h"
#include "api/generation.h"
#include "api/responder.h"
#include "chat/json.h"

namespace koho::api {

/// Reads the body of POST /v1/messages: everything but encode(). Any model named "claude-..." is
/// served, whatever its name. A request without `thinking` does not think, as Anthropic's does not.
Refusal read_messages(const chat::Json& body, const Model& model, GenerationRequest& request);

/// The same for POST /v1/messages/count_tokens, where max_tokens is not asked for.
Refusal read_message_count(const chat::Json& body, const Model& model, GenerationRequest& request);

/// A refusal of encode() in Anthropic's words: clients compact their conversation on "prompt is too
/// long: X tokens > Y maximum". Other refusals are returned as they are.
ApiError reword_for_anthropic(ApiError error, const GenerationRequest& request, const Model& model);

/// Writes the answer to a request that read_messages has read. The request need not outlive it.
std::unique_ptr<Responder> respond_messages(const GenerationRequest& request, const Model& model);

/// Answers the body of POST /v1/messages/count_tokens: {"input_tokens": N}, N as a Messages request
/// with this body would use.
Refusal count_message_tokens(const chat::Json& body, const Model& model, std::string& out);

}  // namespace koho::api
