// SPDX-License-Identifier: Apache-2.0
// The input of OpenAI's Responses API as a conversation of koho's: a string, or items (messages,
// function calls and their outputs, reasoning). Coding agents send OpenAI's own tools and their
// items along whether a server has them or not: those are left out and named.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/json.h"
#include "chat/message.h"

namespace koho::api {

/// Reads `instructions`, `input` and `tools` of a Responses request. Reasoning, text and calls that
/// follow each other are one turn of the assistant. Errors: invalid_argument, unsupported, naming
/// the field ("input[2].content[0].type: ..."). `left_out` gets the types of tools and items that
/// only OpenAI's servers can do something with: "tools.web_search", "input.web_search_call".
Result<chat::Conversation> read_responses_conversation(const chat::Json& request,
                                                       std::vector<std::string>& left_out);

/// What a reasoning item carries for clients that send back nothing else of it: the text, in a form
/// that they pass on unread; and the text again, "" if `encoded` is none of ours.
std::string encode_reasoning(std::string_view text);
std::string decode_reasoning(std::string_view encoded);

}  // namespace koho::api
