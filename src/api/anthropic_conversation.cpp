// SPDX-License-Identifier: Apache-2.0
#include "api/anthropic_conversation.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "api/fields.h"

namespace koho::api {
namespace {

using chat::Conversation;
using chat::Json;
using chat::Message;
using chat::ToolCall;

/// The type of a block of content. Errors: not an object, no type.
Result<std::string> block_type(const Json& block, const std::string& field) {
  if (!block.is_object()) return wrong_kind(field, "an object", &block);
  KOHO_TRY_ASSIGN(const Json* type, required_string(block, "type", field));
  return type->text;
}

Error unreadable(const std::string& field, std::string_view type) {
  return make_field_error(
      ErrorCode::unsupported, field + ".type",
      "{}: blocks of type \"{:.40}\" are not supported: this model reads text only", type);
}

/// A string, or the texts that `read` returns for an array of blocks, joined with `separator`.
template <typename Read>
Result<std::string> joined_blocks(const Json& content,
                                  const std::string& field,
                                  std::string_view separator,
                                  const Read& read) {
  if (content.is_string()) return content.text;
  if (!content.is_array()) return wrong_kind(field, "a string or an array of blocks", &content);
  std::string text;
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    KOHO_TRY_ASSIGN(const std::string one, read(content.items[i], fmt::format("{}.{}", field, i)));
    if (i > 0) text += separator;
    text += one;
  }
  return text;
}

Result<std::string> text_block(const Json& block, const std::string& field) {
  KOHO_TRY_ASSIGN(const std::string type, block_type(block, field));
  if (type != "text") return unreadable(field, type);
  KOHO_TRY_ASSIGN(const Json* text, required_string(block, "text", field));
  return text->text;
}

/// A string, or the joined texts of an array of text blocks.
Result<std::string> text_of(const Json& content,
                            const std::string& field,
                            std::string_view separator) {
  return joined_blocks(content, field, separator, text_block);
}

/// `text` between tags, after those of the given members that `block` has.
Result<std::string> tagged(std::string_view tag,
                           const Json& block,
                           const std::string& field,
                           std::initializer_list<std::string_view> told,
                           std::string_view text) {
  std::string made = fmt::format("<{}>\n", tag);
  for (const std::string_view name : told) {
    KOHO_TRY_ASSIGN(const std::optional<std::string> value, optional_string(block, name, field));
    if (value && !value->empty()) made += fmt::format("{}: {}\n", name, *value);
  }
  return fmt::format("{}\n{}\n</{}>", made, text, tag);
}

Result<std::string> document_text(const Json& block, const std::string& field) {
  const std::string source_field = field + ".source";
  const Json* source = block.find("source");
  if (source == nullptr || !source->is_object())
    return wrong_kind(source_field, "an object", source);
  KOHO_TRY_ASSIGN(const Json* type, required_string(*source, "type", source_field));
  std::string text;
  if (type->text == "text") {
    KOHO_TRY_ASSIGN(const Json* data, required_string(*source, "data", source_field));
    text = data->text;
  } else if (type->text == "content") {
    const Json* content = source->find("content");
    if (content == nullptr) return wrong_kind(source_field + ".content", "a string", content);
    KOHO_TRY_ASSIGN(text, text_of(*content, source_field + ".content", "\n"));
  } else {
    return make_field_error(ErrorCode::unsupported, source_field + ".type",
                            "{}: documents of type \"{:.40}\" are not supported: this model reads "
                            "text only (types text and content)",
                            std::string_view(type->text));
  }
  return tagged("document", block, field, {"title", "context"}, text);
}

/// The text of a block of a user message or a tool result.
Result<std::string> readable_block(const Json& block, const std::string& field) {
  KOHO_TRY_ASSIGN(const std::string type, block_type(block, field));
  if (type == "document") return document_text(block, field);
  if (type == "search_result") {
    const Json* content = block.find("content");
    if (content == nullptr || !content->is_array())
      return wrong_kind(field + ".content", "an array of blocks", content);
    KOHO_TRY_ASSIGN(const std::string text, text_of(*content, field + ".content", "\n"));
    return tagged("search_result", block, field, {"source", "title"}, text);
  }
  if (type == "tool_reference") {
    KOHO_TRY_ASSIGN(const Json* name, required_string(block, "tool_name", field));
    return fmt::format("<tool_reference>{}</tool_reference>", name->text);
  }
  return text_block(block, field);
}

Message text_message(std::string_view role, std::string_view text) {
  Message message;
  message.role = role;
  message.content = Json::string(text);
  return message;
}

/// Splits one user message into messages: tool results and text, in their order.
class UserBlocks {
 public:
  explicit UserBlocks(std::vector<Message>& messages) : messages_(messages) {}

  Status add(const Json& block, const std::string& field) {
    KOHO_TRY_ASSIGN(const std::string type, block_type(block, field));
    if (type == "tool_result") return add_tool_result(block, field);
    KOHO_TRY_ASSIGN(const std::string text, readable_block(block, field));
    if (has_text_) text_ += "\n";
    text_ += text;
    has_text_ = true;
    return {};
  }
  void finish() {
    if (!std::exchange(has_text_, false)) return;
    messages_.push_back(text_message("user", std::exchange(text_, {})));
  }

 private:
  Status add_tool_result(const Json& block, const std::string& field) {
    finish();
    KOHO_TRY_ASSIGN(const Json* id, required_string(block, "tool_use_id", field));
    std::string text;
    if (const Json* content = block.given("content")) {
      KOHO_TRY_ASSIGN(text, joined_blocks(*content, field + ".content", "\n", readable_block));
    }
    KOHO_TRY_ASSIGN(const bool is_error, boolean_or(block, "is_error", field, false));
    if (is_error) text.insert(0, "Error: ");
    Message message = text_message("tool", text);
    message.tool_call_id = id->text;
    messages_.push_back(std::move(message));
    return {};
  }

  std::vector<Message>& messages_;
  std::string text_;
  bool has_text_ = false;
};

Status read_user(const Json& content, const std::string& field, std::vector<Message>& messages) {
  if (content.is_string()) {
    messages.push_back(text_message("user", content.text));
    return {};
  }
  if (!content.is_array()) return wrong_kind(field, "a string or an array of blocks", &content);
  if (content.items.empty())
    return make_field_error(ErrorCode::invalid_argument, field, "{}: must not be empty");
  UserBlocks blocks(messages);
  for (std::size_t i = 0; i < content.items.size(); ++i)
    KOHO_TRY(blocks.add(content.items[i], fmt::format("{}.{}", field, i)));
  blocks.finish();
  return {};
}

Status add_tool_use(const Json& block, const std::string& field, Message& message) {
  ToolCall call;
  KOHO_TRY_ASSIGN(const Json* id, required_string(block, "id", field));
  KOHO_TRY_ASSIGN(const Json* name, required_string(block, "name", field));
  call.id = id->text;
  call.name = name->text;
  if (const Json* input = block.given("input")) {
    if (!input->is_object()) return wrong_kind(field + ".input", "an object", input);
    call.arguments = *input;
  }
  message.tool_calls.push_back(std::move(call));
  return {};
}

Status add_assistant_block(const Json& block,
                           const std::string& field,
                           Message& message,
                           std::string& text) {
  KOHO_TRY_ASSIGN(const std::string type, block_type(block, field));
  if (type == "text") {
    KOHO_TRY_ASSIGN(const Json* part, required_string(block, "text", field));
    text += part->text;
    return {};
  }
  if (type == "thinking") {
    KOHO_TRY_ASSIGN(const Json* thinking, required_string(block, "thinking", field));
    if (!message.reasoning_content) message.reasoning_content.emplace();
    *message.reasoning_content += thinking->text;
    return {};
  }
  if (type == "redacted_thinking") return {};
  if (type == "tool_use") return add_tool_use(block, field, message);
  return unreadable(field, type);
}

Status read_assistant(const Json& content,
                      const std::string& field,
                      std::vector<Message>& messages) {
  if (messages.empty() || messages.back().role != "assistant") {
    messages.push_back(text_message("assistant", ""));
    // Reasoning has its own blocks here, so "</think>" in a text block stays text.
    messages.back().reasoning_content.emplace();
  }
  Message& message = messages.back();
  std::string& text = message.content->text;
  if (content.is_string()) {
    text += content.text;
  } else if (content.is_array()) {
    for (std::size_t i = 0; i < content.items.size(); ++i)
      KOHO_TRY(
          add_assistant_block(content.items[i], fmt::format("{}.{}", field, i), message, text));
  } else {
    return wrong_kind(field, "a string or an array of blocks", &content);
  }
  return {};
}

Status read_messages(const Json& request, std::vector<Message>& messages) {
  const Json* list = request.find("messages");
  if (list == nullptr)
    return make_field_error(ErrorCode::invalid_argument, "messages", "{}: Field required");
  if (!list->is_array()) return wrong_kind("messages", "an array", list);
  if (list->items.empty())
    return make_field_error(ErrorCode::invalid_argument, "messages",
                            "{}: at least one message is required");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string field = fmt::format("messages.{}", i);
    const Json& turn = list->items[i];
    if (!turn.is_object()) return wrong_kind(field, "an object", &turn);
    KOHO_TRY_ASSIGN(const Json* role, required_string(turn, "role", field));
    const Json* content = turn.find("content");
    if (content == nullptr)
      return make_field_error(ErrorCode::invalid_argument, field + ".content",
                              "{}: Field required");
    if (role->text == "user") {
      KOHO_TRY(read_user(*content, field + ".content", messages));
    } else if (role->text == "assistant") {
      KOHO_TRY(read_assistant(*content, field + ".content", messages));
    } else if (role->text == "system") {
      KOHO_TRY_ASSIGN(const std::string text, text_of(*content, field + ".content", "\n"));
      messages.push_back(text_message("system", without_billing_header(text)));
    } else {
      return make_field_error(ErrorCode::invalid_argument, field + ".role",
                              "{}: must be user, assistant or system, found \"{:.40}\"",
                              std::string_view(role->text));
    }
  }
  if (messages.empty() || messages.back().role != "assistant") return {};
  if (!messages.back().tool_calls.empty())
    return make_field_error(ErrorCode::invalid_argument,
                            fmt::format("messages.{}", list->items.size() - 1),
                            "{}: `tool_use` ids were found without `tool_result` blocks "
                            "immediately after: {}",
                            messages.back().tool_calls.front().id);
  return {};
}

Status read_system(const Json& request, std::vector<Message>& messages) {
  const Json* system = request.given("system");
  if (system == nullptr) return {};
  std::string text;
  if (system->is_array()) {
    // Per block, so that a block with only the billing header disappears entirely.
    for (std::size_t i = 0; i < system->items.size(); ++i) {
      Json one;
      one.kind = Json::Kind::array;
      one.items.push_back(system->items[i]);
      Result<std::string> block = text_of(one, "system", "");
      if (!block.ok())
        return make_field_error(block.error().code, fmt::format("system.{}", i),
                                "{}: expected a block of type text");
      const std::string kept = without_billing_header(*block);
      if (kept.empty()) continue;
      if (!text.empty()) text += "\n";
      text += kept;
    }
  } else {
    KOHO_TRY_ASSIGN(const std::string whole, text_of(*system, "system", ""));
    text = without_billing_header(whole);
  }
  if (!text.empty()) messages.push_back(text_message("system", text));
  return {};
}

/// {"name", "description", "input_schema", "strict"} as the function that GLM's template prints.
Result<Json> read_tool(const Json& tool, const std::string& field) {
  if (!tool.is_object()) return wrong_kind(field, "an object", &tool);
  if (const Json* type = tool.given("type"); type != nullptr && *type != Json::string("custom"))
    return make_field_error(
        ErrorCode::unsupported, field + ".type",
        "{}: only Anthropic's own models have tools of type {}; declare a tool of type "
        "\"custom\" with an input_schema",
        chat::dump_json(*type));
  KOHO_TRY_ASSIGN(const Json* name, required_string(tool, "name", field));
  const Json* schema = tool.find("input_schema");
  if (schema == nullptr)
    return make_field_error(ErrorCode::invalid_argument, field + ".input_schema",
                            "{}: Field required");
  if (!schema->is_object()) return wrong_kind(field + ".input_schema", "an object", schema);
  Json function = Json::object();
  function.set("name", *name);
  if (const Json* description = tool.given("description")) {
    if (!description->is_string())
      return wrong_kind(field + ".description", "a string", description);
    function.set("description", *description);
  }
  function.set("parameters", *schema);
  if (const Json* strict = tool.given("strict")) function.set("strict", *strict);
  Json result = Json::object();
  result.set("type", Json::string("function"));
  result.set("function", std::move(function));
  return result;
}

Status read_tools(const Json& request, std::vector<Json>& tools) {
  const Json* list = request.given("tools");
  if (list == nullptr) return {};
  if (!list->is_array()) return wrong_kind("tools", "an array", list);
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    KOHO_TRY_ASSIGN(Json tool, read_tool(list->items[i], fmt::format("tools.{}", i)));
    tools.push_back(std::move(tool));
  }
  return {};
}

}  // namespace

std::string without_billing_header(std::string_view text) {
  constexpr std::string_view kHeader = "x-anthropic-billing-header:";
  if (text.find(kHeader) == std::string_view::npos) return std::string(text);
  std::string kept;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line =
        text.substr(0, end == std::string_view::npos ? text.size() : end + 1);
    if (!line.starts_with(kHeader)) kept += line;
    text.remove_prefix(line.size());
  }
  return kept;
}

Result<chat::Conversation> read_anthropic_conversation(const Json& request) {
  KOHO_TRY(expect_object(request));
  Conversation conversation;
  KOHO_TRY(read_system(request, conversation.messages));
  KOHO_TRY(read_messages(request, conversation.messages));
  KOHO_TRY(read_tools(request, conversation.tools));
  conversation.add_generation_prompt = conversation.messages.back().role != "assistant";
  return conversation;
}

}  // namespace koho::api
