// SPDX-License-Identifier: Apache-2.0
// What the text side of a model answers without generating: token ids of a text or a conversation,
// text of ids, the prompt as it is rendered.
#pragma once

#include <string>

#include "api/error.h"
#include "api/model.h"
#include "chat/json.h"

namespace koho::api {

/// {"prompt"} or {"messages", …} to {"count", "max_model_len", "tokens"}; with
/// "return_token_strs" also each token's text. Errors as those of a completion, but that no text is
/// longer than the context.
Refusal answer_tokenize(const chat::Json& body, const Model& model, std::string& out);

/// {"tokens"} to {"prompt"}, special tokens shown unless "skip_special_tokens".
Refusal answer_detokenize(const chat::Json& body, const Model& model, std::string& out);

/// The body of a chat completion to {"prompt", "prompt_token_ids", "count"}.
Refusal answer_render(const chat::Json& body, const Model& model, std::string& out);

}  // namespace koho::api
