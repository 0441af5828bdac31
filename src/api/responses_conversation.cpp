// SPDX-License-Identifier: Apache-2.0
#include "api/responses_conversation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "api/fields.h"
#include "tokenizer/utf8.h"

namespace koho::api {
namespace {

using chat::Conversation;
using chat::Json;
using chat::Message;
using chat::ToolCall;

constexpr std::string_view kSeal = "koho1:";
constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

Error unreadable(const std::string& field, std::string_view type) {
  return make_field_error(ErrorCode::unsupported, field + ".type",
                          "{}: \"{:.40}\" is not supported: this model reads and writes text only",
                          type);
}

/// A string, or the joined texts of an array of parts of these types.
Result<std::string> text_of(const Json& content,
                            const std::string& field,
                            std::initializer_list<std::string_view> types) {
  if (content.is_string()) return content.text;
  if (!content.is_array()) return wrong_kind(field, "a string or an array of parts", &content);
  std::string text;
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string part_field = fmt::format("{}[{}]", field, i);
    const Json& part = content.items[i];
    if (!part.is_object()) return wrong_kind(part_field, "an object", &part);
    KOHO_TRY_ASSIGN(const Json* type, required_string(part, "type", part_field));
    bool known = false;
    for (const std::string_view name : types) known = known || type->text == name;
    if (!known) return unreadable(part_field, type->text);
    const std::string_view key = type->text == "refusal" ? "refusal" : "text";
    KOHO_TRY_ASSIGN(const Json* part_text, required_string(part, key, part_field));
    if (!text.empty()) text += "\n";
    text += part_text->text;
  }
  return text;
}

/// Items of tools that OpenAI's servers run; they have no text of the conversation.
constexpr std::array<std::string_view, 13> kForeignItems{
    "web_search_call",         "file_search_call",      "code_interpreter_call",
    "image_generation_call",   "mcp_list_tools",        "mcp_call",
    "mcp_approval_request",    "mcp_approval_response", "local_shell_call",
    "local_shell_call_output", "computer_call",         "tool_search_call",
    "tool_search_output"};

/// Converts items to messages; consecutive items of the assistant become one message.
class ItemReader {
 public:
  ItemReader(std::vector<Message>& messages, std::vector<std::string>& left_out)
      : messages_(messages), left_out_(left_out) {}

  Status read(const Json& item, const std::string& field) {
    if (!item.is_object()) return wrong_kind(field, "an object", &item);
    KOHO_TRY_ASSIGN(const std::optional<std::string> type, optional_string(item, "type", field));
    if (!type || *type == "message") return message(item, field);
    if (*type == "function_call") return function_call(item, "arguments", field);
    if (*type == "custom_tool_call") return function_call(item, "input", field);
    if (*type == "function_call_output" || *type == "custom_tool_call_output")
      return function_call_output(item, field);
    if (*type == "reasoning") return reasoning(item, field);
    if (*type == "item_reference")
      return make_field_error(ErrorCode::unsupported, field + ".type",
                              "{}: \"item_reference\" is not supported: this server stores no "
                              "responses; send the items themselves");
    if (std::ranges::find(kForeignItems, *type) == kForeignItems.end())
      return unreadable(field, *type);
    left_out_.push_back("input." + *type);
    return {};
  }

 private:
  void add(std::string_view role, std::string_view text) {
    Message message;
    message.role = role;
    message.content = Json::string(text);
    messages_.push_back(std::move(message));
  }

  /// The current assistant message, or a new one.
  Message& turn() {
    if (messages_.empty() || messages_.back().role != "assistant") {
      add("assistant", "");
      messages_.back().reasoning_content.emplace();  // "</think>" in the text is text
    }
    return messages_.back();
  }

  Status message(const Json& item, const std::string& field) {
    KOHO_TRY_ASSIGN(const Json* role, required_string(item, "role", field));
    const Json* content = item.find("content");
    if (content == nullptr)
      return make_field_error(ErrorCode::invalid_argument, field + ".content",
                              "{}: Field required");
    const std::string content_field = field + ".content";
    if (role->text == "assistant") {
      KOHO_TRY_ASSIGN(const std::string text,
                      text_of(*content, content_field, {"output_text", "text", "refusal"}));
      Message& assistant = turn();
      assistant.content->text += text;
      return {};
    }
    if (role->text != "user" && role->text != "system" && role->text != "developer")
      return make_field_error(ErrorCode::invalid_argument, field + ".role",
                              "{}: must be user, assistant, system or developer, found \"{:.40}\"",
                              std::string_view(role->text));
    KOHO_TRY_ASSIGN(const std::string text,
                    text_of(*content, content_field, {"input_text", "text"}));
    add(role->text, text);
    return {};
  }

  Status function_call(const Json& item, std::string_view key, const std::string& field) {
    ToolCall call;
    KOHO_TRY_ASSIGN(const Json* id, required_string(item, "call_id", field));
    KOHO_TRY_ASSIGN(const Json* name, required_string(item, "name", field));
    KOHO_TRY_ASSIGN(const Json* arguments, required_string(item, key, field));
    call.id = id->text;
    call.name = name->text;
    Result<Json> read = chat::read_arguments(arguments->text, values_left_);
    if (!read.ok()) {
      Error error = std::move(read).error().with_context(field_name(field, key));
      error.field = field_name(field, key);
      return error;
    }
    call.arguments = std::move(*read);
    turn().tool_calls.push_back(std::move(call));
    return {};
  }

  Status function_call_output(const Json& item, const std::string& field) {
    KOHO_TRY_ASSIGN(const Json* id, required_string(item, "call_id", field));
    const Json* output = item.find("output");
    if (output == nullptr)
      return make_field_error(ErrorCode::invalid_argument, field + ".output", "{}: Field required");
    KOHO_TRY_ASSIGN(const std::string text,
                    text_of(*output, field + ".output", {"input_text", "output_text", "text"}));
    add("tool", text);
    messages_.back().tool_call_id = id->text;
    return {};
  }

  Status reasoning(const Json& item, const std::string& field) {
    std::string text;
    if (const Json* content = item.given("content")) {
      KOHO_TRY_ASSIGN(text, text_of(*content, field + ".content", {"reasoning_text", "text"}));
    }
    if (text.empty()) {
      KOHO_TRY_ASSIGN(const std::optional<std::string> encoded,
                      optional_string(item, "encrypted_content", field));
      if (encoded) text = decode_reasoning(*encoded);
    }
    if (text.empty()) {
      if (const Json* summary = item.given("summary")) {
        KOHO_TRY_ASSIGN(text, text_of(*summary, field + ".summary", {"summary_text"}));
      }
    }
    *turn().reasoning_content += text;
    return {};
  }

  std::vector<Message>& messages_;
  std::vector<std::string>& left_out_;
  std::size_t values_left_ = chat::kArgumentValuesMax;  // of the arguments of calls
};

Status read_input(const Json& request,
                  std::vector<Message>& messages,
                  std::vector<std::string>& left_out) {
  const Json* input = request.given("input");
  if (input == nullptr)
    return make_field_error(ErrorCode::invalid_argument, "input", "{}: Field required");
  if (input->is_string()) {
    Message message;
    message.role = "user";
    message.content = *input;
    messages.push_back(std::move(message));
    return {};
  }
  if (!input->is_array()) return wrong_kind("input", "a string or an array of items", input);
  if (input->items.empty())
    return make_field_error(ErrorCode::invalid_argument, "input",
                            "{}: at least one item is required");
  ItemReader reader(messages, left_out);
  for (std::size_t i = 0; i < input->items.size(); ++i)
    KOHO_TRY(reader.read(input->items[i], fmt::format("input[{}]", i)));
  return {};
}

/// Tools that OpenAI's servers run, or that only OpenAI's models know how to call.
constexpr std::array<std::string_view, 11> kServerTools{
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation",
    "mcp",        "local_shell",        "shell",       "computer",         "apply_patch",
    "tool_search"};

/// Refuses a server tool; its dated names ("web_search_preview_2025_03_11") count, too. A web
/// search without access to the web, which Codex adds to every request, asks for nothing.
Status refuse_server_tool(const Json& tool, const std::string& type, const std::string& field) {
  const bool known = std::ranges::any_of(kServerTools, [&](std::string_view name) {
    return type == name || type.starts_with(std::string(name) + '_');
  });
  if (!known) return {};
  Json no_access;
  no_access.kind = Json::Kind::boolean;
  const Json* access = tool.find("external_web_access");
  if (access != nullptr && *access == no_access) return {};
  return make_field_error(
      ErrorCode::unsupported, field + ".type",
      "{}: only OpenAI's servers and models have tools of type \"{:.40}\"; declare a tool of type "
      "\"function\" with parameters",
      std::string_view(type));
}

/// A flat tool of this API as the nested one that GLM's template prints.
Result<Json> read_tool(const Json& tool, const std::string& field) {
  KOHO_TRY_ASSIGN(const Json* name, required_string(tool, "name", field));
  Json function = Json::object();
  function.set("name", *name);
  for (const std::string_view key : {"description", "parameters", "strict"})
    if (const Json* value = tool.given(key)) function.set(key, *value);
  Json result = Json::object();
  result.set("type", Json::string("function"));
  result.set("function", std::move(function));
  return result;
}

}  // namespace

Result<Conversation> read_responses_conversation(const Json& request,
                                                 std::vector<std::string>& left_out) {
  KOHO_TRY(expect_object(request));
  Conversation conversation;
  KOHO_TRY_ASSIGN(const std::optional<std::string> instructions,
                  optional_string(request, "instructions"));
  if (instructions && !instructions->empty()) {
    Message message;
    message.role = "system";
    message.content = Json::string(*instructions);
    conversation.messages.push_back(std::move(message));
  }
  KOHO_TRY(read_input(request, conversation.messages, left_out));
  if (const Json* tools = request.given("tools")) {
    if (!tools->is_array()) return wrong_kind("tools", "an array", tools);
    for (std::size_t i = 0; i < tools->items.size(); ++i) {
      const std::string field = fmt::format("tools[{}]", i);
      if (!tools->items[i].is_object()) return wrong_kind(field, "an object", &tools->items[i]);
      KOHO_TRY_ASSIGN(const Json* type, required_string(tools->items[i], "type", field));
      if (type->text != "function") {
        KOHO_TRY(refuse_server_tool(tools->items[i], type->text, field));
        left_out.push_back(fmt::format("tools.{:.100}", std::string_view(type->text)));
        continue;
      }
      KOHO_TRY_ASSIGN(Json tool, read_tool(tools->items[i], field));
      conversation.tools.push_back(std::move(tool));
    }
  }
  conversation.add_generation_prompt = true;
  return conversation;
}

std::string encode_reasoning(std::string_view text) {
  std::string encoded(kSeal);
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      const auto byte = i + j < text.size() ? static_cast<unsigned char>(text[i + j]) : 0U;
      bits = bits << 8U | byte;
    }
    const std::size_t digits = std::min<std::size_t>(3, text.size() - i) + 1;
    for (std::size_t j = 0; j < 4; ++j)
      encoded += j < digits ? kBase64[bits >> (18 - 6 * j) & 63U] : '=';
  }
  return encoded;
}

std::string decode_reasoning(std::string_view encoded) {
  if (!encoded.starts_with(kSeal)) return {};
  encoded.remove_prefix(kSeal.size());
  std::string text;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : encoded) {
    if (c == '=') break;
    const std::size_t digit = kBase64.find(c);
    if (digit == std::string_view::npos) return {};
    bits = bits << 6U | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    text += static_cast<char>(bits >> static_cast<unsigned>(num_bits) & 0xFFU);
  }
  return utf8_valid_bytes(text) == text.size() ? text : std::string();
}

}  // namespace koho::api
