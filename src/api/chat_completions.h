// SPDX-License-Identifier: Apache-2.0
// OpenAI's /v1/chat/completions: reads requests, writes answers. GLM's reasoning has the field
// names of vLLM and SGLang.
#pragma once

#include <memory>

#include "api/generation.h"
#include "api/responder.h"
#include "api/shared_fields.h"

namespace koho::api {

/// The fields that this API has in addition to the shared ones.
std::span<const RequestField> chat_completion_fields();

/// Whether read_chat_completion() reads the body's member `name`.
bool reads_of_chat(std::string_view name);

/// Reads and checks a body; encode() is the next step.
Refusal read_chat_completion(const chat::Json& body,
                             const Model& model,
                             GenerationRequest& request);

/// The model and everything that `request` refers to outlive the responder; the request need not.
std::unique_ptr<Responder> respond_chat_completion(const GenerationRequest& request,
                                                   const Model& model);

}  // namespace koho::api
