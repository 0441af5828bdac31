// SPDX-License-Identifier: Apache-2.0
// koho's own /generate: token ids (or text) in, token ids and text out.
#pragma once

#include <memory>
#include <vector>

#include "api/generation.h"
#include "api/responder.h"

namespace koho::api {

/// Whether read_generate() reads the body's member `name`.
bool reads_of_generate(std::string_view name);
/// The fields that /generate has beside those of completions.
std::vector<std::string_view> generate_field_names();

/// Reads a completion's body with the extra names "ids", "input_ids" and "text" of the prompt,
/// "max_new_tokens" of max_tokens, and SGLang's "sampling_params". "model" may be missing.
Refusal read_generate(const chat::Json& body, const Model& model, GenerationRequest& request);

/// Not streamed: {"id", "choices": [{"index", "ids", "text", "logprobs", "finish_reason",
/// "stop_reason"}], "usage", "timings"}. In a stream each event has one token of one choice:
/// {"index", "ids", "text", …}; the last one has usage and timings.
std::unique_ptr<Responder> respond_generate(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
