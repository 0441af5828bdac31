// SPDX-License-Identifier: Apache-2.0
// OpenAI's /v1/completions: one or several prompts, each a text or token ids.
#pragma once

#include <memory>

#include "api/generation.h"
#include "api/responder.h"
#include "api/shared_fields.h"

namespace koho::api {

/// The fields that this API has in addition to the shared ones.
std::span<const RequestField> completion_fields();

/// Whether read_completion() reads the body's member `name`.
bool reads_of_completions(std::string_view name);

/// Reads and checks a body; encode() is the next step.
Refusal read_completion(const chat::Json& body, const Model& model, GenerationRequest& request);

/// For APIs that read a completion and show no prompt: `field` is what the client calls "echo".
Refusal refuse_echo(const GenerationRequest& request, std::string_view field);

/// "prompt": a string, an array of strings, an array of token ids, an array of such arrays.
Refusal read_prompts(const chat::Json& prompt,
                     std::string_view field,
                     const Model& model,
                     std::vector<PromptInput>& prompts);

/// The model outlives the responder; the request need not.
std::unique_ptr<Responder> respond_completion(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
