// SPDX-License-Identifier: Apache-2.0
// A conversation as plain structs, parsed from the JSON of a chat request. The reading functions
// keep what the client sent. normalize() holds every change that the server makes to messages
// before it renders them, and is the only place where koho departs from the templates' own output.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/json.h"

namespace koho::chat {

/// A tool call that the assistant made.
struct ToolCall {
  std::string id;
  std::string name;
  Json arguments = Json::object();  // always an object
};

/// A message. Fields that the request leaves out are empty.
struct Message {
  std::string role;
  std::optional<Json> content;  // as received: a string, an array of parts, null, ...
  std::optional<std::string> reasoning_content;
  std::optional<std::string>
      reasoning;  // another name of reasoning_content; the templates ignore it
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;
};

/// The input of a template.
struct Conversation {
  std::vector<Message> messages;
  std::vector<Json> tools;
  bool add_generation_prompt = false;
  std::optional<bool> enable_thinking;  // nullopt: thinking is on
  std::optional<bool> clear_thinking;  // nullopt: the template drops the reasoning of earlier turns
};

/// Reads `messages` and `tools` of a chat request as the templates do, and ignores other keys. The
/// arguments of a tool call become an object: a string by read_arguments(), a missing value or null
/// as {} (GLM-4.7's template raises an error on all of these). Errors: invalid_argument with the
/// field ("messages[3].tool_calls[0].name: ...").
Result<Conversation> read_turns(const Json& request);

/// The arguments of a tool call that a client sent as a string, as an object. If the text breaks
/// off (the answer was cut at max_tokens), closes what is open and keeps the members so far. Any
/// other text becomes {"arguments": text}, so that the model still reads it. Takes the number of
/// its values from `values_left`. Errors: invalid_argument, reason too_long: it has more.
Result<Json> read_arguments(std::string_view text, std::size_t& values_left);

/// The most values of all arguments of a conversation.
inline constexpr std::size_t kArgumentValuesMax = 131'072;

/// read_turns() and the template's flags `add_generation_prompt`, `enable_thinking` and
/// `clear_thinking`, where null means false, as in Python.
Result<Conversation> read_conversation(const Json& request);

/// Changes messages before the server renders them:
///  - role `developer` becomes `system` (the templates drop it);
///  - content null or missing becomes "" (the templates print None for null);
///  - the text parts of a tool message become one string (the templates print Python's dict); the
///    `output` of a part counts as its text;
///  - `reasoning` becomes `reasoning_content` if missing; results get the order of their calls.
/// Refuses roles other than system, developer, user, assistant and tool, content that is neither a
/// string nor an array, and parts that are not text.
/// Errors: invalid_argument, or unsupported (image, audio and other parts), with the field.
Status normalize(Conversation& conversation);

/// The text of `content` as a template reads it: a string as it is, the text parts and strings of
/// an array concatenated, anything else as Python's str() prints it; "" for nullopt.
std::string visible_text(const std::optional<Json>& content);

}  // namespace koho::chat
