// SPDX-License-Identifier: Apache-2.0
// Writes nodes as the schema that xgrammar compiles, and the properties of a tool's parameters as
// alternatives of text, pattern, literal and JSON (SchemaProperty).
#include <algorithm>
#include <array>

#include "grammar/schema_tree.h"

namespace koho {
namespace {

/// The values of `format` that xgrammar enforces. Other formats do not restrict the string.
constexpr std::array<std::string_view, 14> kFormats{"email",         "date",
                                                    "time",          "date-time",
                                                    "duration",      "ipv4",
                                                    "ipv6",          "hostname",
                                                    "uuid",          "uri",
                                                    "uri-reference", "uri-template",
                                                    "json-pointer",  "relative-json-pointer"};

/// Formats that are written as patterns of our own. xgrammar's pattern of e-mail addresses takes
/// tens of milliseconds a mask at 150,000 tokens; its dates have a 31st of February.
struct FormatPattern {
  std::string_view format;
  std::string_view pattern;
};
constexpr FormatPattern kPatterns[] = {
    {"email",
     R"(^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+$)"},
    {"date",
     R"(^([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)$)"},
};

std::string_view pattern_of_format(std::string_view format) {
  for (const FormatPattern& one : kPatterns)
    if (one.format == format) return one.pattern;
  return {};
}

}  // namespace

void Schema::Tree::write(std::string& out, int index, unsigned types, bool with_definitions) const {
  const Node& node = at(index);
  if (node.value->object() == nullptr) {
    if (types == kAnyType) {
      out += "{}";
    } else {
      ObjectWriter object(out);
      write_types(object.key("type"), types);
      object.end();
    }
    return;
  }
  ObjectWriter object(out);
  if (with_definitions) write_definitions(object, node);
  if (node.primary == "$ref") {
    append_json_string(object.key("$ref"), *node.value->find("$ref")->string());
  } else if (node.primary == "const" || node.primary == "enum") {
    write_values(object.key("enum"), node, types);
  } else if (!node.options.empty()) {
    // check_disjoint() has shown that a oneOf means the same as an anyOf.
    std::string& list = object.key("anyOf");
    char before = '[';
    for (const int option : node.options) {
      if (!at(option).productive) continue;
      list += before;
      write_child(list, option);
      before = ',';
    }
    list += ']';
  } else if ((node.types & types) != kAnyType) {
    write_typed(object, node, node.types & types);
  }
  object.end();
}

void Schema::Tree::write_definitions(ObjectWriter& object, const Node& node) const {
  for (const std::string_view keyword : {"$defs", "definitions"}) {
    if (std::ranges::none_of(node.definitions,
                             [&](const auto& entry) { return entry.first == keyword; }))
      continue;
    std::string& out = object.key(keyword);
    ObjectWriter list(out);
    for (const auto& [where, child] : node.definitions)
      if (where == keyword && at(child).reached && at(child).productive)
        write_child(list.key(definition_names_.at(child)), child);
    list.end();
  }
}

void Schema::Tree::write_types(std::string& out, unsigned types) {
  // "number" includes "integer".
  if ((types & number_type) != 0) types &= ~static_cast<unsigned>(integer_type);
  char before = '[';
  for (const auto& [name, type] : kTypeNames) {
    if ((types & type) == 0) continue;
    out += before;
    append_json_string(out, name);
    before = ',';
  }
  out += ']';
}

void Schema::Tree::write_values(std::string& out, const Node& node, unsigned types) const {
  char before = '[';
  for_each_value(node, [&](const Value& value) {
    if (!has_type(value, types)) return;
    out += before;
    append_json_value(out, value);
    before = ',';
  });
  out += ']';
}

void Schema::Tree::write_typed(ObjectWriter& object, const Node& node, unsigned types) const {
  const bool single = (types & (types - 1)) == 0;
  if (single) {
    for (const auto& [name, type] : kTypeNames)
      if (type == types) append_json_string(object.key("type"), name);
  } else {
    write_types(object.key("type"), types);
  }
  for (const json::Member& member : *node.value->object()) {
    const std::string_view name = member.name;
    if ((limits_type(name) & types) == 0) continue;
    const bool written_below = name == "items" || name == "prefixItems" || name == "properties" ||
                               name == "required" || name == "additionalProperties" ||
                               name == "patternProperties" || name == "propertyNames";
    const bool no_effect =
        name == "format" &&
        (node.value->find("pattern") != nullptr || node.value->find("minLength") != nullptr ||
         node.value->find("maxLength") != nullptr || !is_one_of(kFormats, *member.value.string()));
    if (name == "format" && !no_effect)
      if (const std::string_view pattern = pattern_of_format(*member.value.string());
          !pattern.empty()) {
        append_json_string(object.key("pattern"), pattern);
        continue;
      }
    // Lengths are written below as a pattern: xgrammar's minLength and maxLength let control
    // characters through.
    const bool length =
        name == "minLength" || name == "maxLength" || (name == "pattern" && node.counted);
    if (!written_below && !no_effect && !length) append_json_value(object.key(name), member.value);
  }
  const bool longest = node.value->find("maxLength") != nullptr;
  if ((types & string_type) != 0 && node.counted) {
    if (const Value* pattern = node.value->find("pattern"))
      append_json_string(object.key("pattern"), counted_pattern(*pattern->string())->unbounded);
  } else if ((types & string_type) != 0 && (longest || number_of(node, "minLength") > 0)) {
    const std::string most = longest ? std::to_string(number_of(node, "maxLength")) : "";
    append_json_string(object.key("pattern"), fmt::format(R"(^[^"\\\x00-\x1f]{{{},{}}}$)",
                                                          number_of(node, "minLength"), most));
  }
  if ((types & array_type) != 0) write_array(object, node);
  if ((types & object_type) != 0) write_object(object, node);
}

void Schema::Tree::write_array(ObjectWriter& object, const Node& node) const {
  if (!node.prefix.empty()) {
    std::string& list = object.key("prefixItems");
    char before = '[';
    for (const int item : node.prefix) {
      list += before;
      write_child(list, item);
      before = ',';
    }
    list += ']';
  }
  if (node.items < 0) {
    object.key("items") += node.prefix.empty() ? "{}" : "false";
  } else if (!at(node.items).productive) {
    object.key("items") += "false";
  } else {
    write_child(object.key("items"), node.items);
  }
}

void Schema::Tree::write_object(ObjectWriter& object, const Node& node) const {
  if (node.pattern_properties >= 0) {
    const json::Member& member = node.value->find("patternProperties")->object()->front();
    ObjectWriter patterns(object.key("patternProperties"));
    if (at(node.pattern_properties).productive)
      write_child(patterns.key(member.name), node.pattern_properties);
    patterns.end();
    object.key("additionalProperties") += "false";
    return;
  }
  if (node.properties.empty()) {
    if (node.names >= 0 && at(node.names).productive)
      write_child(object.key("propertyNames"), node.names);
    std::string& others = object.key("additionalProperties");
    const bool no_names = node.names >= 0 && !at(node.names).productive;
    if (no_names || !allows_others(node) ||
        (node.additional >= 0 && !at(node.additional).productive)) {
      others += "false";
    } else if (node.additional >= 0) {
      write_child(others, node.additional);
    } else {
      others += "true";
    }
    return;
  }
  ObjectWriter properties(object.key("properties"));
  for (const Property& property : node.properties)
    if (at(property.node).productive) write_child(properties.key(property.name), property.node);
  properties.end();
  std::string& required = object.key("required");
  char before = '[';
  for (const Property& property : node.properties) {
    if (!property.always_comes()) continue;
    required += before;
    append_json_string(required, property.name);
    before = ',';
  }
  required += before == '[' ? "[]" : "]";
  object.key("additionalProperties") += "false";
}

int Schema::Tree::follow(int index) const {
  for (std::size_t steps = 0; steps <= nodes_.size(); ++steps) {
    const Node& node = at(index);
    if (node.primary == "$ref") {
      index = node.target;
    } else if (node.primary == "allOf") {
      index = node.options[0];
    } else {
      return index;
    }
  }
  return index;  // a cycle is not productive, and callers pass productive nodes only
}

std::string Schema::Tree::standing_alone(int index, unsigned types) const {
  std::string body;
  write(body, index, types, false);
  std::string out;
  ObjectWriter object(out);
  write_definitions(object, at(0));
  if (out.size() > 1 && body.size() > 2) out += ',';
  return out + body.substr(1);
}

void Schema::Tree::add_alternatives(int index,
                                    std::vector<SchemaProperty::Alternative>& alternatives,
                                    std::vector<int>& seen) const {
  using Alternative = SchemaProperty::Alternative;
  index = follow(index);
  if (std::ranges::find(seen, index) != seen.end()) return;
  seen.push_back(index);
  const Node& node = at(index);
  if (node.primary == "anyOf" || node.primary == "oneOf") {
    for (const int option : node.options)
      if (at(option).productive) add_alternatives(option, alternatives, seen);
    return;
  }
  if (node.primary == "const" || node.primary == "enum") {
    for_each_value(node, [&](const Value& value) {
      std::string text;
      if (value.string() != nullptr)
        text = *value.string();
      else
        append_json_value(text, value);
      alternatives.push_back({Alternative::Kind::literal, std::move(text)});
    });
    return;
  }
  const bool any = node.value->object() == nullptr || node.types == kAnyType;
  if (any || (node.types & string_type) != 0) {
    Alternative& alternative = alternatives.emplace_back();
    alternative.kind = Alternative::Kind::text;
    if (!any) {
      if (const Value* pattern = node.value->find("pattern")) {
        alternative.kind = Alternative::Kind::pattern;
        alternative.value = *pattern->string();
      }
      alternative.length_min = number_of(node, "minLength");
      if (node.value->find("maxLength") != nullptr)
        alternative.length_max = number_of(node, "maxLength");
    }
  }
  const unsigned others = any ? 0 : node.types & ~static_cast<unsigned>(string_type);
  if (others != 0) alternatives.push_back({Alternative::Kind::json, standing_alone(index, others)});
}

}  // namespace koho
