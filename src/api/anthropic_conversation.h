// SPDX-License-Identifier: Apache-2.0
// Converts the messages of Anthropic's Messages API to a chat::Conversation: system text, blocks of
// text, thinking, tool use and tool results, and the tools. It refuses blocks that this model
// cannot read, and drops the billing header, which changes with every request, so that the prefix
// cache hits.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "chat/json.h"
#include "chat/message.h"

namespace koho::api {

/// Reads `system`, `messages` and `tools` of a Messages request.
///
///  - system blocks are joined, a newline between them; lines "x-anthropic-billing-header: ..." are
///    dropped (Claude Code changes them with every request);
///  - a user message's tool results become messages of role tool, in the order of the calls they
///    answer; its text between them messages of role user;
///  - an assistant message's thinking becomes its reasoning; redacted thinking is skipped;
///    consecutive assistant messages are one turn;
///  - `cache_control` is ignored everywhere;
///  - a last message of the assistant is continued: there is no generation prompt then.
///
/// Errors: invalid_argument, unsupported, with the field's path as Anthropic writes it
/// ("messages.2.content.0.type: ...").
Result<chat::Conversation> read_anthropic_conversation(const chat::Json& request);

/// `text` without its lines that begin with "x-anthropic-billing-header:".
std::string without_billing_header(std::string_view text);

}  // namespace koho::api
