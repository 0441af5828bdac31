// SPDX-License-Identifier: Apache-2.0
#include "chat/message.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>

#include "chat/python_text.h"

namespace koho::chat {
namespace {

/// Whether Python treats the value as false: the templates' `if` skips such values.
bool is_false(const Json* value) {
  if (value == nullptr) return true;
  switch (value->kind) {
    case Json::Kind::null:
      return true;
    case Json::Kind::boolean:
      return !value->boolean;
    case Json::Kind::string:
      return value->text.empty();
    case Json::Kind::array:
    case Json::Kind::token_ids:
    case Json::Kind::object:
      return value->items.empty();
    case Json::Kind::number:
      return value->text == "0" || value->text == "0.0" || value->text == "-0.0";
  }
  return false;
}

Result<std::optional<bool>> read_flag(const Json& request, std::string_view name) {
  const Json* flag = request.find(name);
  if (flag == nullptr) return std::optional<bool>{};
  if (flag->is_null()) return std::optional<bool>{false};
  if (flag->kind != Json::Kind::boolean) return wrong_kind(name, "true or false", flag);
  return std::optional<bool>{flag->boolean};
}

/// Parses an object whose text may break off anywhere, by closing what is open. Errors: too_long.
Result<std::optional<Json>> read_cut_object(std::string_view text, std::size_t values_max) {
  // As a rule the text is whole, and needs no copy.
  const JsonShape shape{.values_max = values_max, .last_of_duplicates = true};
  if (Result<Json> whole = parse_json(text, shape); whole.ok() && whole->is_object()) {
    return std::optional<Json>(std::move(*whole));
  } else if (!whole.ok() && whole.error().reason == ErrorReason::too_long) {
    return std::move(whole).error();
  }
  std::string closing;
  bool quoted = false;
  std::size_t escape = text.size();  // where the last escape starts
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') escape = i++;
    if (quoted) continue;
    if (c == '{') closing += '}';
    if (c == '[') closing += ']';
    if ((c == '}' || c == ']') && !closing.empty()) closing.pop_back();
    if (closing.size() > kJsonDepthMax) return std::optional<Json>();
  }
  std::reverse(closing.begin(), closing.end());
  std::string cut(text);
  if (quoted) {
    // Drop an incomplete escape: \, \u1, \u12, \u123.
    if (!parse_json('"' + cut.substr(escape) + '"').ok()) cut.resize(escape);
    cut += '"';
  }
  for (const char* missing : {"", "null", ":null"})
    if (Result<Json> parsed = parse_json(cut + missing + closing, shape);
        parsed.ok() && parsed->is_object()) {
      return std::optional<Json>(std::move(*parsed));
    } else if (!parsed.ok() && parsed.error().reason == ErrorReason::too_long) {
      return std::move(parsed).error();
    }
  return std::optional<Json>();
}

Result<Json> arguments_of(const Json* arguments,
                          const std::string& field,
                          std::size_t& values_left) {
  if (arguments == nullptr || arguments->is_null()) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) return wrong_kind(field, "an object or a string of JSON", arguments);
  Result<Json> read = read_arguments(arguments->text, values_left);
  if (read.ok()) return read;
  Error error = std::move(read).error().with_context(field);
  error.field = field;
  return error;
}

/// `call` is {"function": {"name", "arguments"}} or {"name", "arguments"} itself.
Result<ToolCall> read_tool_call(const Json& call,
                                const std::string& field,
                                std::size_t& values_left) {
  if (!call.is_object()) return wrong_kind(field, "an object", &call);
  const Json* function = call.find("function");
  const bool wrapped = !is_false(function);
  if (wrapped && !function->is_object())
    return wrong_kind(field + ".function", "an object", function);
  const Json& body = wrapped ? *function : call;
  const std::string prefix = wrapped ? field + ".function" : field;
  ToolCall result;
  const Json* name = body.find("name");
  if (name == nullptr || !name->is_string()) return wrong_kind(prefix + ".name", "a string", name);
  result.name = name->text;
  KOHO_TRY_ASSIGN(result.arguments,
                  arguments_of(body.find("arguments"), prefix + ".arguments", values_left));
  if (const Json* id = call.find("id"); id != nullptr && id->is_string()) result.id = id->text;
  return result;
}

Result<Message> read_message(const Json& json, const std::string& field, std::size_t& values_left) {
  if (!json.is_object()) return wrong_kind(field, "an object", &json);
  Message message;
  const Json* role = json.find("role");
  if (role == nullptr || !role->is_string()) return wrong_kind(field + ".role", "a string", role);
  message.role = role->text;
  if (const Json* content = json.find("content")) message.content = *content;
  // A refused answer has its text in `refusal`, as OpenAI's servers write it.
  if (const Json* refusal = json.given("refusal"); refusal != nullptr && refusal->is_string() &&
                                                   json.given("content") == nullptr &&
                                                   message.role == "assistant")
    message.content = *refusal;
  if (const Json* text = json.find("reasoning_content"); text != nullptr && text->is_string())
    message.reasoning_content = text->text;
  if (const Json* text = json.find("reasoning"); text != nullptr && text->is_string())
    message.reasoning = text->text;
  if (const Json* id = json.find("tool_call_id"); id != nullptr && id->is_string())
    message.tool_call_id = id->text;
  const Json* calls = json.find("tool_calls");
  if (is_false(calls)) return message;
  if (!calls->is_array()) return wrong_kind(field + ".tool_calls", "an array", calls);
  for (std::size_t i = 0; i < calls->items.size(); ++i) {
    KOHO_TRY_ASSIGN(
        ToolCall call,
        read_tool_call(calls->items[i], fmt::format("{}.tool_calls[{}]", field, i), values_left));
    message.tool_calls.push_back(std::move(call));
  }
  return message;
}

/// The text of one content part of a tool message.
Result<std::string> tool_part_text(const Json& part, const std::string& field) {
  if (part.is_string()) return part.text;
  if (!part.is_object()) return wrong_kind(field, "an object or a string", &part);
  if (const Json* output = part.find("output")) return python_str(*output);
  const Json* text = part.find("text");
  if (text == nullptr || !text->is_string()) return wrong_kind(field + ".text", "a string", text);
  return text->text;
}

/// The refusal part of an assistant's message, {"type": "refusal", "refusal": …}, as a text part.
Json text_of_refusal(const Json& part, const Json& refusal) {
  Json text = Json::object();
  for (std::size_t i = 0; i < part.keys.size(); ++i)
    if (part.keys[i] != "type" && part.keys[i] != "refusal") text.set(part.keys[i], part.items[i]);
  text.set("type", Json::string("text"));
  text.set("text", refusal);
  return text;
}

Status check_part(const Json& part, const std::string& field) {
  if (part.is_string()) return {};
  if (!part.is_object()) return wrong_kind(field, "an object or a string", &part);
  const Json* type = part.find("type");
  if (type == nullptr) {
    if (part.find("output") != nullptr) return {};
    return wrong_kind(field + ".type", "a string", nullptr);
  }
  if (!type->is_string()) return wrong_kind(field + ".type", "a string", type);
  if (type->text != "text")
    return make_field_error(
        ErrorCode::unsupported, field,
        "{}: a content part of type \"{:.40}\" is not supported: this model accepts text "
        "only; send parts of type \"text\"",
        std::string_view(type->text));
  const Json* text = part.find("text");
  if (text == nullptr || !text->is_string()) return wrong_kind(field + ".text", "a string", text);
  return {};
}

Status normalize_message(Message& message, const std::string& field) {
  constexpr std::array<std::string_view, 4> kRoles{"system", "user", "assistant", "tool"};
  if (message.role == "developer") message.role = "system";
  bool known = false;
  for (const std::string_view role : kRoles) known = known || message.role == role;
  if (!known)
    return make_field_error(ErrorCode::invalid_argument, field + ".role",
                            "{}: must be one of system, developer, user, assistant, tool, found "
                            "\"{:.40}\"",
                            std::string_view(message.role));
  if (!message.reasoning_content) message.reasoning_content = std::exchange(message.reasoning, {});
  if (!message.content || message.content->is_null()) {
    message.content = Json::string("");
    return {};
  }
  if (message.content->is_string()) return {};
  if (!message.content->is_array())
    return wrong_kind(field + ".content", "a string or an array of parts", &*message.content);
  std::string joined;
  for (std::size_t i = 0; i < message.content->items.size(); ++i) {
    Json& part = message.content->items[i];
    const std::string part_field = fmt::format("{}.content[{}]", field, i);
    if (const Json* refusal = part.given("refusal");
        message.role == "assistant" && refusal != nullptr && refusal->is_string() &&
        part.find("type") != nullptr && *part.find("type") == Json::string("refusal"))
      part = text_of_refusal(part, *refusal);
    KOHO_TRY(check_part(part, part_field));
    if (message.role != "tool") continue;
    KOHO_TRY_ASSIGN(const std::string text, tool_part_text(part, part_field));
    joined += text;
  }
  if (message.role == "tool") message.content = Json::string(joined);
  return {};
}

/// Sorts the results of a turn into the order of its calls.
void order_tool_results(std::vector<Message>& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    std::unordered_map<std::string_view, std::size_t> places;
    for (const ToolCall& call : messages[i].tool_calls) places.emplace(call.id, places.size());
    // Ids that are used twice tell nothing.
    if (places.empty() || places.size() < messages[i].tool_calls.size()) continue;
    const auto rank = [&places](const Message& result) {
      const auto found = places.find(result.tool_call_id);
      return found == places.end() ? places.size() : found->second;
    };
    const auto begin = messages.begin() + static_cast<std::ptrdiff_t>(i + 1);
    const auto end =
        std::find_if(begin, messages.end(), [](const Message& one) { return one.role != "tool"; });
    std::stable_sort(begin, end,
                     [&rank](const Message& a, const Message& b) { return rank(a) < rank(b); });
  }
}

}  // namespace

Result<Json> read_arguments(std::string_view text, std::size_t& values_left) {
  if (python_strip(text).empty()) return Json::object();
  KOHO_TRY_ASSIGN(std::optional<Json> object, read_cut_object(text, values_left));
  if (object) {
    values_left -= count_values(*object);
    return std::move(*object);
  }
  Json verbatim = Json::object();
  verbatim.set("arguments", Json::string(text));
  return verbatim;
}

Result<Conversation> read_turns(const Json& request) {
  if (!request.is_object())
    return make_error(ErrorCode::invalid_argument, "the chat request: expected an object, found {}",
                      kind_name(request.kind));
  Conversation conversation;
  const Json* messages = request.find("messages");
  if (messages == nullptr || !messages->is_array())
    return wrong_kind("messages", "an array", messages);
  std::size_t values_left = kArgumentValuesMax;
  for (std::size_t i = 0; i < messages->items.size(); ++i) {
    KOHO_TRY_ASSIGN(Message message,
                    read_message(messages->items[i], fmt::format("messages[{}]", i), values_left));
    conversation.messages.push_back(std::move(message));
  }
  if (const Json* tools = request.find("tools"); !is_false(tools)) {
    if (!tools->is_array()) return wrong_kind("tools", "an array", tools);
    conversation.tools = tools->items;
  }
  return conversation;
}

Result<Conversation> read_conversation(const Json& request) {
  KOHO_TRY_ASSIGN(Conversation conversation, read_turns(request));
  KOHO_TRY_ASSIGN(const std::optional<bool> generation,
                  read_flag(request, "add_generation_prompt"));
  conversation.add_generation_prompt = generation.value_or(false);
  KOHO_TRY_ASSIGN(conversation.enable_thinking, read_flag(request, "enable_thinking"));
  KOHO_TRY_ASSIGN(conversation.clear_thinking, read_flag(request, "clear_thinking"));
  return conversation;
}

Status normalize(Conversation& conversation) {
  for (std::size_t i = 0; i < conversation.messages.size(); ++i)
    KOHO_TRY(normalize_message(conversation.messages[i], fmt::format("messages[{}]", i)));
  order_tool_results(conversation.messages);
  return {};
}

std::string visible_text(const std::optional<Json>& content) {
  if (!content) return "";
  if (!content->is_array()) return python_str(*content);
  std::string joined;
  for (const Json& part : content->items) {
    if (part.is_string()) {
      joined += part.text;
    } else if (const Json* type = part.find("type");
               type != nullptr && *type == Json::string("text")) {
      if (const Json* text = part.find("text")) joined += python_str(*text);
    }
  }
  return joined;
}

}  // namespace koho::chat
