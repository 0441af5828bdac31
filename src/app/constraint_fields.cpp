// SPDX-License-Identifier: Apache-2.0
#include "app/constraint_fields.h"

#include <utility>
#include <vector>

namespace koho::app {
namespace {

using chat::Json;

template <typename... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::invalid_argument, format, std::forward<Args>(args)...);
}

/// A schema or a structural tag, given as JSON or as a string of JSON.
std::string schema_text(const Json& value) {
  return value.is_string() ? value.text : chat::dump_json(value);
}

Result<std::optional<Constraint>> read_format(const Json& format) {
  const Json* type = format.find("type");
  if (type == nullptr || !type->is_string())
    return wrong("response_format must be an object with a type");
  if (type->text == "text") return std::optional<Constraint>();
  if (type->text == "json_object") return std::optional(Constraint::json_object());
  if (type->text == "structural_tag")
    return std::optional(Constraint::structural_tag(chat::dump_json(format)));
  if (type->text != "json_schema")
    return wrong(
        "response_format.type must be text, json_object, json_schema or structural_tag, found "
        "\"{}\"",
        type->text);
  const Json* named = format.given("json_schema");
  const Json* schema = named == nullptr ? nullptr : named->given("schema");
  if (schema == nullptr) return wrong("response_format.json_schema.schema is missing");
  return std::optional(Constraint::json_schema(schema_text(*schema)));
}

Result<std::optional<Constraint>> read_outputs(const Json& outputs) {
  if (!outputs.is_object()) return wrong("structured_outputs must be an object");
  std::vector<Constraint> found;
  if (const Json* json = outputs.given("json"))
    found.push_back(Constraint::json_schema(schema_text(*json)));
  if (const Json* object = outputs.given("json_object"); object != nullptr && object->boolean)
    found.push_back(Constraint::json_object());
  for (const auto& [name, make] :
       {std::pair{"regex", &Constraint::regex}, std::pair{"grammar", &Constraint::ebnf}}) {
    const Json* text = outputs.given(name);
    if (text == nullptr) continue;
    if (!text->is_string()) return wrong("structured_outputs.{} must be a string", name);
    found.push_back(make(text->text));
  }
  if (const Json* choice = outputs.given("choice")) {
    std::vector<std::string> texts;
    if (!choice->is_array()) return wrong("structured_outputs.choice must be an array of strings");
    for (const Json& item : choice->items) {
      if (!item.is_string()) return wrong("structured_outputs.choice must be an array of strings");
      texts.push_back(item.text);
    }
    found.push_back(Constraint::choice(std::move(texts)));
  }
  if (const Json* tag = outputs.given("structural_tag"))
    found.push_back(Constraint::structural_tag(schema_text(*tag)));
  if (found.size() != 1)
    return wrong(
        "structured_outputs: give exactly one of json, json_object, regex, choice, grammar and "
        "structural_tag, found {}",
        found.size());
  return std::optional(std::move(found[0]));
}

}  // namespace

Result<std::optional<Constraint>> read_constraint(const Json& request) {
  const Json* format = request.given("response_format");
  const Json* outputs = request.given("structured_outputs");
  if (format != nullptr && outputs != nullptr)
    return wrong("response_format: give only one of response_format and structured_outputs");
  if (format != nullptr) return read_format(*format);
  if (outputs != nullptr) return read_outputs(*outputs);
  return std::optional<Constraint>();
}

}  // namespace koho::app
