// SPDX-License-Identifier: Apache-2.0
// A conversation as plain structs: what a chat request says, read from its JSON and not yet
// changed. normalize() is the one place where koho departs from what the templates would print;
// everything the server does to messages before rendering stands there.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/json.h"

namespace koho::chat {

/// One call of a tool that the assistant made.
struct ToolCall {
  std::string id;
  std::string name;
  Json arguments = Json::object();  // always an object
};

/// One message. Fields that the request leaves out are empty.
struct Message {
  std::string role;
  std::optional<Json> content;  // as received: a string, a list of parts, null, ...
  std::optional<std::string> reasoning_content;
  std::optional<std::string>
      reasoning;  // newer clients' name of the same; the templates do not see it
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;
};

/// What a template renders.
struct Conversation {
  std::vector<Message> messages;
  std::vector<Json> tools;
  bool add_generation_prompt = false;
  std::optional<bool> enable_thinking;  // nothing: thinking is on
  std::optional<bool> clear_thinking;   // nothing: reasoning of earlier turns are dropped
};

/// Reads `messages` and `tools` of a chat request as the templates would. Other keys are ignored.
/// Tool-call arguments become an object: a string as read_arguments() says; missing or null is {}
/// (GLM-4.7's template raises an error on all of these). Errors: invalid_argument, naming the field
/// ("messages[3].tool_calls[0].name: ...").
Result<Conversation> read_turns(const Json& request);

/// What a client sends back as the arguments of a call: an object. A text that breaks off, as that
/// of a call does whose answer was cut, is what it says up to there; any other text that is no
/// object stands as it is under the one name "arguments", so that the model reads what was sent.
Json read_arguments(std::string_view text);

/// read_turns() and the flags that the templates know, `add_generation_prompt`, `enable_thinking`
/// and `clear_thinking`: null is false, as in Python.
Result<Conversation> read_conversation(const Json& request);

/// What the server does before rendering:
///  - role `developer` becomes `system` (the templates drop it);
///  - content null or missing becomes "" (the templates print None for null);
///  - a tool message's text parts are joined to one string (the templates print their mapping),
///    a part's `output` counts as its text;
///  - `reasoning` counts as `reasoning_content` where that is missing.
/// Refused: roles other than system, developer, user, assistant, tool; content of another type than
/// string or list; parts that are neither text nor a string (koho reads text only).
/// Errors: invalid_argument, unsupported (image, audio and other parts), naming the field.
Status normalize(Conversation& conversation);

/// The text a template sees in `content`: a string itself, a list's text parts and strings joined,
/// anything else as Python's str() prints it; "" for nothing.
std::string visible_text(const std::optional<Json>& content);

}  // namespace koho::chat
