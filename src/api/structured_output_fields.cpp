// SPDX-License-Identifier: Apache-2.0
#include "api/structured_output_fields.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "api/body.h"

namespace koho::api {
namespace {

using chat::Json;
using Value = FieldValue;

void constrain(RequestBuilder& builder, std::string_view field, Constraint constraint) {
  builder.request.constraint = std::move(constraint);
  builder.request.constraint_field = field;
}

Refusal read_schema(const Value& value, const Json* schema, RequestBuilder& builder) {
  if (schema == nullptr || (!schema->is_object() && schema->kind != Json::Kind::boolean))
    return wrong_field(
        value.name, fmt::format("{}: the JSON schema is missing or is not an object", value.name),
        "unsupported_schema");
  constrain(builder, value.name, Constraint::json_schema(chat::dump_json(*schema)));
  return {};
}

Refusal read_response_format(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object");
  const Json* type = value.json.find("type");
  if (type == nullptr || !type->is_string())
    return wrong_field(value.name, "response_format.type must be a string");
  // A structural tag is read whole by the grammar.
  if (type->text != "structural_tag")
    if (Refusal refused =
            check_members(value.json, value.name, {"type", "json_schema", "schema"}, builder.model))
      return refused;
  if (type->text == "text") return {};
  if (type->text == "json_object") {
    // As llama-server has it: a schema may stand beside it.
    if (const Json* schema = value.json.given("schema")) return read_schema(value, schema, builder);
    constrain(builder, value.name, Constraint::json_object());
    return {};
  }
  if (type->text == "json_schema") {
    const Json* wrapped = value.json.find("json_schema");
    if (wrapped != nullptr)
      if (Refusal refused =
              check_members(*wrapped, "response_format.json_schema",
                            {"name", "description", "schema", "strict"}, builder.model))
        return refused;
    return read_schema(
        value, wrapped == nullptr ? value.json.find("schema") : wrapped->find("schema"), builder);
  }
  if (type->text == "structural_tag") {
    constrain(builder, value.name, Constraint::structural_tag(chat::dump_json(value.json)));
    return {};
  }
  return wrong_field(value.name,
                     fmt::format("response_format.type must be one of text, json_object, "
                                 "json_schema, structural_tag, found \"{:.40}\"",
                                 std::string_view(type->text)));
}

/// A member of vLLM's structured_outputs, under whatever name it came.
Refusal read_structure(std::string_view member, const Value& value, RequestBuilder& builder) {
  if (builder.request.constraint)
    return wrong_field(
        value.name,
        fmt::format("{}: give only one of the structured-output fields; {} is given already",
                    value.name, builder.request.constraint_field));
  if (member == "json") {
    if (!value.json.is_string()) return read_schema(value, &value.json, builder);
    const Result<Json> parsed = chat::parse_json(value.json.text, {.values_max = kBodyValuesMax});
    if (!parsed.ok())
      return wrong_field(value.name, fmt::format("{}: {}", value.name, parsed.error().message),
                         "unsupported_schema");
    return read_schema(value, &*parsed, builder);
  }
  if (member == "choice") {
    std::vector<std::string> choices;
    if (!value.json.is_array()) return must_be(value, "an array of strings");
    if (value.json.items.empty())
      return wrong_field(value.name, fmt::format("{} must have at least one string, found an empty "
                                                 "array",
                                                 value.name));
    if (Refusal refused = read_texts(value, 10'000, 1U << 16U, choices)) return refused;
    constrain(builder, value.name, Constraint::choice(std::move(choices)));
    return {};
  }
  if (member == "json_object") {
    bool on = false;
    if (Refusal refused = read_boolean(value, on)) return refused;
    if (on) constrain(builder, value.name, Constraint::json_object());
    return {};
  }
  if (member == "structural_tag" && value.json.is_object()) {
    constrain(builder, value.name, Constraint::structural_tag(chat::dump_json(value.json)));
    return {};
  }
  std::string text;
  if (Refusal refused = read_text(value, text, 1U << 16U)) return refused;
  if (member == "structural_tag") {
    constrain(builder, value.name, Constraint::structural_tag(std::move(text)));
    return {};
  }
  constrain(
      builder, value.name,
      member == "regex" ? Constraint::regex(std::move(text)) : Constraint::ebnf(std::move(text)));
  return {};
}

Refusal read_structured_outputs(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_object()) return must_be(value, "an object");
  bool compact = false;
  for (std::size_t i = 0; i < value.json.keys.size(); ++i) {
    const std::string& member = value.json.keys[i];
    const Json& json = value.json.items[i];
    if (json.is_null()) continue;
    const std::string field = fmt::format("structured_outputs.{:.100}", std::string_view(member));
    if (member == "disable_any_whitespace" || member == "disable_fallback") {
      bool on = false;
      if (Refusal refused = read_boolean({.name = field, .json = json}, on)) return refused;
      compact = compact || (on && member == "disable_any_whitespace");
      continue;  // there is nothing to fall back on
    }
    const bool known = member == "json" || member == "regex" || member == "choice" ||
                       member == "grammar" || member == "json_object" || member == "structural_tag";
    if (!known)
      return wrong_field(value.name,
                         fmt::format("{} must be one of json, regex, choice, grammar, json_object, "
                                     "structural_tag, disable_any_whitespace, disable_fallback",
                                     field));
    if (Refusal refused = read_structure(member, {.name = field, .json = json}, builder))
      return refused;
  }
  if (builder.request.constraint) builder.request.constraint->compact = compact;
  return {};
}

/// vLLM's old names, with "guided_" before.
Refusal read_guided(const Value& value, RequestBuilder& builder) {
  return read_structure(value.name.substr(std::string_view("guided_").size()), value, builder);
}

// Several names for one thing: the last in the table wins.
constexpr RequestField kFields[] = {
    {"response_format", "object: type text, json_object, json_schema or structural_tag",
     read_response_format},
    {"structured_outputs",
     "object: one of json, regex, choice, grammar, json_object, structural_tag; "
     "disable_any_whitespace, disable_fallback",
     read_structured_outputs},
    {"guided_json", "deprecated name of structured_outputs.json", read_guided},
    {"guided_regex", "deprecated name of structured_outputs.regex", read_guided},
    {"guided_choice", "deprecated name of structured_outputs.choice", read_guided},
    {"guided_grammar", "deprecated name of structured_outputs.grammar", read_guided},
    {"json_schema", "SGLang's name for structured_outputs.json",
     [](const Value& v, RequestBuilder& d) { return read_structure("json", v, d); }},
    {"regex", "SGLang's name for structured_outputs.regex",
     [](const Value& v, RequestBuilder& d) { return read_structure("regex", v, d); }},
    {"ebnf", "SGLang's name for structured_outputs.grammar",
     [](const Value& v, RequestBuilder& d) { return read_structure("grammar", v, d); }},
};

}  // namespace

std::span<const RequestField> structured_output_fields() {
  return kFields;
}

}  // namespace koho::api
