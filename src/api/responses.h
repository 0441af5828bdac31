// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API: its requests read, its answers written, as one JSON body or as the
// sequence of server-sent events that its clients follow. Nothing is stored: `previous_response_id`
// is refused, `store` has no effect. What is meant by each field: docs/server.md.
#pragma once

#include <memory>

#include "api/error.h"
#include "api/generation.h"
#include "api/responder.h"
#include "chat/json.h"

namespace koho::api {

/// Reads the body of POST /v1/responses: everything but encode().
Refusal read_response(const chat::Json& body, const Model& model, GenerationRequest& request);

/// Writes the answer to a request that read_response has read. The request need not outlive it.
std::unique_ptr<Responder> respond_response(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
