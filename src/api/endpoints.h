// SPDX-License-Identifier: Apache-2.0
// The table of POST endpoints: each path with its reader and its responder. A new API is one row
// and two functions.
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

/// An endpoint that generates: read, encode(), the engine, then the responder.
struct GenerationEndpoint {
  std::string_view path;
  bool in_batches;                // a line of OpenAI's batch files may name it
  std::string_view prompt_field;  // the prompt's field, for error messages
  /// Whether `read` looks at the body's member `name`; the value of any other may be null.
  bool (*reads)(std::string_view name);
  Refusal (*read)(const chat::Json& body, const Model& model, GenerationRequest& request);
  std::unique_ptr<Responder> (*respond)(const GenerationRequest& request, const Model& model);
  /// Rewrites encode()'s error for this API; null: leaves it.
  ApiError (*reword)(ApiError error,
                     const GenerationRequest& request,
                     const Model& model) = nullptr;
};

/// An endpoint that generates nothing: tokenize, count tokens, render.
struct TextEndpoint {
  std::string_view path;
  bool (*reads)(std::string_view name);  // as in GenerationEndpoint
  Refusal (*answer)(const chat::Json& body,
                    const Model& model,
                    const KeyRules& key,
                    std::string& out);
};

std::span<const GenerationEndpoint> generation_endpoints();
std::span<const TextEndpoint> text_endpoints();

/// The endpoint that lines of batch files name so; null: they cannot name it.
const GenerationEndpoint* find_batch_endpoint(std::string_view path);
/// The paths that they can name, for messages.
std::string batch_paths();

/// Parses `body` and answers it; a refusal leaves `out` unspecified.
Refusal answer_text(const TextEndpoint& endpoint,
                    std::string_view body,
                    const Model& model,
                    const KeyRules& key,
                    std::string& out);

}  // namespace koho::api
