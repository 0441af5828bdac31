// SPDX-License-Identifier: Apache-2.0
// OpenAI's /v1/completions: prompts as text or ids, one or many.
#pragma once

#include <memory>

#include "api/generation.h"
#include "api/responder.h"
#include "api/shared_fields.h"

namespace koho::api {

/// The fields of this API beside the shared ones.
std::span<const RequestField> completion_fields();

/// Everything but encode().
Refusal read_completion(const chat::Json& body, const Model& model, GenerationRequest& request);

/// "prompt": a string, an array of strings, an array of token ids, an array of such arrays.
Refusal read_prompts(const chat::Json& prompt,
                     std::string_view field,
                     const Model& model,
                     std::vector<PromptInput>& prompts);

/// The model outlives the responder; the request need not.
std::unique_ptr<Responder> respond_completion(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
