// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API: reads requests, writes answers as one JSON body or as OpenAI's sequence
// of server-sent events. Nothing is stored: `previous_response_id` is refused, `store` has no
// effect. Fields: docs/clients.md.
#pragma once

#include <memory>
#include <span>

#include "api/error.h"
#include "api/generation.h"
#include "api/responder.h"
#include "chat/json.h"

namespace koho::api {

/// Whether read_response() reads the body's member `name`.
bool reads_of_responses(std::string_view name);
/// The fields of OpenAI's API.
std::span<const std::string_view> response_field_names();

/// Reads the body of POST /v1/responses: everything but encode().
Refusal read_response(const chat::Json& body, const Model& model, GenerationRequest& request);

/// Writes the answer to a request of read_response(), which need not outlive it.
std::unique_ptr<Responder> respond_response(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
