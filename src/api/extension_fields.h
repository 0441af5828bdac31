// SPDX-License-Identifier: Apache-2.0
// Fields that /v1/messages and /v1/responses take in addition to their own API's, with the names of
// chat completions: seed, penalties, stops, priority, salt, timeout, thinking.
#pragma once

#include <string_view>

#include "api/generation.h"

namespace koho::api {

/// Whether read_extensions() may read the body's member `name`.
bool reads_extension(std::string_view name);

/// Reads the fields of `request.unknown_fields` that every chat API takes, and checks those that
/// depend on each other; the others stay unknown. Call it after the API's own fields, whose names
/// have precedence.
Refusal read_extensions(const chat::Json& body, const Model& model, GenerationRequest& request);

}  // namespace koho::api
