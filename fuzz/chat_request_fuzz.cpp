// SPDX-License-Identifier: Apache-2.0
// Chat requests to prompts: no body crashes, values survive writing and reading, and every
// conversation that the server has normalised renders.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "chat/json.h"
#include "chat/message.h"
#include "chat/template.h"
#include "chat/tool_schema.h"
#include "chat/tool_value.h"

namespace koho::chat {
namespace {

void check_request(const Json& request) {
  Result<Conversation> conversation = read_conversation(request);
  if (!conversation.ok()) return;
  const ToolSchemas tools(conversation->tools);
  for (const Message& message : conversation->messages)
    for (const ToolCall& call : message.tool_calls)
      for (const std::string& key : call.arguments.keys)
        KOHO_CHECK(!tools.argument_types(call.name, key).empty());
  for (const TemplateStyle style : {TemplateStyle::glm_4_7, TemplateStyle::glm_4_6}) {
    const Result<Prompt> as_sent = render(*conversation, style);
    if (as_sent.ok()) KOHO_CHECK(as_sent->text().starts_with("[gMASK]<sop>"));
  }
  if (!normalize(*conversation).ok()) return;
  KOHO_CHECK(render(*conversation, TemplateStyle::glm_4_7).ok());
}

void check_one(std::string_view text) {
  const std::string as_value = value_to_json(text, TypeSet::kAny);
  const Result<Json> value = parse_json(text);
  if (!value.ok()) return;
  KOHO_CHECK(parse_json(as_value).ok());
  const Result<Json> again = parse_json(dump_json(*value));
  KOHO_CHECK(again.ok() && *again == *value);
  check_request(*value);
}

}  // namespace
}  // namespace koho::chat

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  koho::chat::check_one({reinterpret_cast<const char*>(data), size});
  return 0;
}
