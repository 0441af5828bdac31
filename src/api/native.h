// SPDX-License-Identifier: Apache-2.0
// koho's own /generate: token ids (or text) in, token ids and text out.
#pragma once

#include <memory>

#include "api/generation.h"
#include "api/responder.h"

namespace koho::api {

/// As a completion's body, with "ids" (or "input_ids", "text") beside "prompt", "max_new_tokens" as
/// a name of max_tokens, SGLang's "sampling_params", and no need of "model".
Refusal read_generate(const chat::Json& body, const Model& model, GenerationRequest& request);

/// Whole: {"id", "choices": [{"index", "ids", "text", "logprobs", "finish_reason",
/// "stop_reason"}], "usage", "timings"}. In a stream each event has one token of one choice:
/// {"index", "ids", "text", …}; the last one has usage and timings.
std::unique_ptr<Responder> respond_generate(const GenerationRequest& request, const Model& model);

}  // namespace koho::api
