// SPDX-License-Identifier: Apache-2.0
// The input of OpenAI's Responses API as a conversation of koho's: a string, or items (messages,
// function calls and their outputs, reasoning). Items of the servers' own tools are refused by
// name.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "chat/json.h"
#include "chat/message.h"

namespace koho::api {

/// Reads `instructions`, `input` and `tools` of a Responses request. Reasoning, text and calls that
/// follow each other are one turn of the assistant. Errors: invalid_argument, unsupported, naming
/// the field ("input[2].content[0].type: ...").
Result<chat::Conversation> read_responses_conversation(const chat::Json& request);

/// What a reasoning item carries for clients that send back nothing else of it: the text, in a form
/// that they pass on unread; and the text again, "" if `sealed` is none of ours.
std::string seal_reasoning(std::string_view text);
std::string open_reasoning(std::string_view sealed);

}  // namespace koho::api
