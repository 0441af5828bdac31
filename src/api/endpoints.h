// SPDX-License-Identifier: Apache-2.0
// The table of what the API answers: each POST path with its reader and its responder. A new API is
// a row here and two functions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "api/error.h"
#include "api/generation.h"
#include "api/model.h"
#include "api/responder.h"
#include "chat/json.h"

namespace koho::api {

/// A body that makes the model generate. read, encode, then the engine, then the responder.
struct GenerationEndpoint {
  std::string_view path;
  std::string_view prompt_field;  // where prompts stand, for messages
  Refusal (*read)(const chat::Json& body, const Model& model, GenerationRequest& request);
  std::unique_ptr<Responder> (*respond)(const GenerationRequest& request, const Model& model);
  /// encode()'s refusal in this API's own words; null: as it is.
  ApiError (*reword)(ApiError error,
                     const GenerationRequest& request,
                     const Model& model) = nullptr;
};

/// A body that is answered at once, from the model's text side: tokenize, count tokens, render.
struct TextEndpoint {
  std::string_view path;
  Refusal (*answer)(const chat::Json& body, const Model& model, std::string& out);
};

std::span<const GenerationEndpoint> generation_endpoints();
std::span<const TextEndpoint> text_endpoints();

}  // namespace koho::api
