// SPDX-License-Identifier: Apache-2.0
// Converts the input of OpenAI's Responses API to a chat::Conversation: a string, or items
// (messages, function calls and their outputs, reasoning). Coding agents also send OpenAI's own
// tools and their items to every server: those are left out and counted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/json.h"
#include "chat/message.h"

namespace koho::api {

/// Reads `instructions`, `input` and `tools` of a Responses request. Consecutive
/// reasoning, text and calls become one assistant message. Errors: invalid_argument, unsupported,
/// with the field's path ("input[2].content[0].type: ..."). `left_out` gets the types of tools and
/// items that only OpenAI's servers support: "tools.web_search", "input.web_search_call".
Result<chat::Conversation> read_responses_conversation(const chat::Json& request,
                                                       std::vector<std::string>& left_out);

/// encrypted_content of a reasoning item: the text in an encoding that clients send back as it is;
/// and the text of it, "" if `encoded` is not koho's.
std::string encode_reasoning(std::string_view text);
std::string decode_reasoning(std::string_view encoded);

}  // namespace koho::api
