// SPDX-License-Identifier: Apache-2.0
// Endpoints that need the tokenizer and the chat template but generate nothing: token ids of a text
// or a conversation, text of ids, the rendered prompt.
#pragma once

#include <string>

#include "api/error.h"
#include "api/generation.h"
#include "api/model.h"
#include "chat/json.h"

namespace koho::api {

/// Whether answer_tokenize() or answer_detokenize() reads the body's member `name`.
bool reads_of_tokenize(std::string_view name);
bool reads_of_detokenize(std::string_view name);

/// {"prompt"} or {"messages", …} to {"count", "max_model_len", "tokens"}; with
/// "return_token_strs" also each token's text. Errors: as those of a completion, but no
/// text is too long.
Refusal answer_tokenize(const chat::Json& body,
                        const Model& model,
                        const KeyRules& key,
                        std::string& out);

/// {"tokens"} to {"prompt"}, special tokens are shown unless "skip_special_tokens".
Refusal answer_detokenize(const chat::Json& body,
                          const Model& model,
                          const KeyRules& key,
                          std::string& out);

/// The body of a chat completion to {"prompt", "prompt_token_ids", "count"}.
Refusal answer_render(const chat::Json& body,
                      const Model& model,
                      const KeyRules& key,
                      std::string& out);

}  // namespace koho::api
