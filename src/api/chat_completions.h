// SPDX-License-Identifier: Apache-2.0
// OpenAI's /v1/chat/completions: its body, its answer, with GLM's thinking as other engines name
// it.
#pragma once

#include <memory>

#include "api/generation.h"
#include "api/responder.h"
#include "api/shared_fields.h"

namespace koho::api {

/// The fields of this API beside the shared ones.
std::span<const RequestField> chat_completion_fields();

/// Everything but encode().
Refusal read_chat_completion(const chat::Json& body,
                             const Model& model,
                             GenerationRequest& request);

/// The model and what else `request` refers to outlive the responder; the request itself need not.
std::unique_ptr<Responder> respond_chat_completion(const GenerationRequest& request,
                                                   const Model& model);

}  // namespace koho::api
