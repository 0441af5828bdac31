// SPDX-License-Identifier: Apache-2.0
// llama.cpp's /completion: its names of the fields of a completion, and its form of the answer.
#pragma once

#include <memory>
#include <string_view>

#include "api/generation.h"
#include "api/responder.h"

namespace koho::api {

/// Whether read_llama_completion() reads the body's member `name`.
bool reads_of_llama_completion(std::string_view name);

/// Reads a completion's body with llama.cpp's names: "n_predict" (-1, the default, as many as fit),
/// "repeat_penalty", "n_probs", "return_tokens", "json_schema", "grammar", and pairs in
/// "logit_bias". "echo" is refused.
Refusal read_llama_completion(const chat::Json& body,
                              const Model& model,
                              GenerationRequest& request);

/// {"content", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "timings", …}, with
/// "tokens" and "completion_probabilities" if asked for; in a stream one event a token with
/// "stop": false, then one with "stop": true and the rest.
std::unique_ptr<Responder> respond_llama_completion(const GenerationRequest& request,
                                                    const Model& model);

}  // namespace koho::api
