// SPDX-License-Identifier: Apache-2.0
// What OpenAI's completion APIs and vLLM have that Anthropic's messages and OpenAI's responses
// lack: seeds, penalties, stops, priority, salt, deadline, thinking; taken there under the same
// names.
#pragma once

#include "api/generation.h"

namespace koho::api {

/// Reads those of the request's unknown fields that every chat API takes, and settles what depends
/// on several of them; the others stay unknown. Called after the API's own fields were read: a name
/// of its own keeps its meaning there.
Refusal read_extensions(const chat::Json& body, const Model& model, GenerationRequest& request);

}  // namespace koho::api
