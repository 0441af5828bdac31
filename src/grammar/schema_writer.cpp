// SPDX-License-Identifier: Apache-2.0
// Writes nodes as the schema that xgrammar compiles, and the properties of a tool's parameters as
// alternatives of text, pattern, literal and JSON (SchemaProperty).
#include <algorithm>
#include <array>
#include <cmath>

#include "grammar/schema_tree.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

/// Writes a bound of integers, which need not be one: above 0.5 is above 0, at least 0.5 is at
/// least 1.
void append_whole_bound(std::string& out, std::string_view name, double bound) {
  const bool up = name == "minimum" || name == "exclusiveMaximum";
  const double whole = up ? std::ceil(bound) : std::floor(bound);
  append_json_value(out, Value(static_cast<std::int64_t>(whole)));
}

/// Writes a bound of numbers that is an integer, which xgrammar reads as a double: one that doubles
/// do not have becomes the next within the bound.
void append_integer_bound(std::string& out, std::string_view name, std::int64_t bound) {
  const auto nearest = static_cast<double>(bound);
  const auto difference = static_cast<long double>(nearest) - static_cast<long double>(bound);
  const bool lower = name == "minimum" || name == "exclusiveMinimum";
  if (lower ? difference >= 0 : difference <= 0) {
    append_json_value(out, difference == 0 ? Value(bound) : Value(nearest));
  } else {
    append_json_value(out, Value(std::nextafter(nearest, lower ? HUGE_VAL : -HUGE_VAL)));
  }
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
  if (with_definitions) write_definitions(object, node, false);
  if (node.primary == "$ref") {
    const std::string& name = *node.value->find("$ref")->string();
    append_json_string(object.key("$ref"), name == "#" ? "#/$defs/" + root_name_ : name);
  } else if (node.primary == "const" || node.primary == "enum") {
    write_values(object.key("enum"), node, types);
  } else if (!node.options.empty()) {
    // check_disjoint() has shown that a oneOf means the same as an anyOf.
    std::string& list = object.key("anyOf");
    char before = '[';
    for (const int option : node.options) {
      if (!at(option).productive || (at(option).types & types) == 0) continue;
      list += before;
      write(list, option, types, true);
      before = ',';
    }
    list += ']';
  } else if ((node.types & types) != kAnyType || !allows_all(node)) {
    write_typed(object, node, node.types & types);
  }
  object.end();
}

/// `alone`: what follows is not the root, so that "#" is another schema.
void Schema::Tree::write_definitions(ObjectWriter& object, const Node& node, bool alone) const {
  for (const std::string_view keyword : {"$defs", "definitions"}) {
    const bool has_root = !root_name_.empty() && keyword == "$defs" && &node == nodes_.data();
    if (!has_root && std::ranges::none_of(node.definitions, [&](const auto& entry) {
          return entry.first == keyword;
        }))
      continue;
    std::string& out = object.key(keyword);
    ObjectWriter list(out);
    if (has_root && alone) write(list.key(root_name_), 0, kAnyType, false);
    if (has_root && !alone) list.key(root_name_) += R"({"$ref":"#"})";
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
    // A pattern of our own below: xgrammar's minLength and maxLength let control characters
    // through, and it applies one of the keywords only.
    const bool about_text = limits_type(name) == string_type;
    if (written_below || about_text) continue;
    const bool about_number = (limits_type(name) & number_type) != 0;
    const bool whole = (types & number_type) == 0 && name != "multipleOf";
    if (const auto count = whole_number(member.value);
        count && (!about_number || name == "multipleOf"))
      append_json_value(object.key(name), Value(*count));
    else if (whole && member.value.kind() == Kind::real)
      append_whole_bound(object.key(name), name, *member.value.number());
    else if (!whole && name != "multipleOf" && about_number && member.value.kind() == Kind::integer)
      append_integer_bound(object.key(name), name, *member.value.integer());
    else
      append_json_value(object.key(name), member.value);
  }
  if ((types & string_type) != 0)
    if (const std::string pattern = pattern_of(node); !pattern.empty())
      append_json_string(object.key("pattern"), pattern);
  if ((types & array_type) != 0) write_array(object, node);
  if ((types & object_type) != 0) write_object(object, node);
}

std::string Schema::Tree::pattern_of(const Node& node) const {
  if (const Value* pattern = node.value->find("pattern"))
    return node.counted ? counted_pattern(*pattern->string())->unbounded : *pattern->string();
  if (const std::optional<FormatPattern> form = format_of(node, node.counted.has_value()))
    return form->pattern;
  if (node.counted) return {};
  const bool longest = node.value->find("maxLength") != nullptr;
  if (!longest && number_of(node, "minLength") == 0) return {};
  return fmt::format(R"(^[^"\\\x00-\x1f]{{{},{}}}$)", number_of(node, "minLength"),
                     longest ? std::to_string(number_of(node, "maxLength")) : "");
}

std::optional<FormatPattern> Schema::Tree::format_of(const Node& node, bool may_count) const {
  const Value* format = node.value->find("format");
  if (format == nullptr) return std::nullopt;
  return pattern_of_format(*format->string(), lengths_of(node), may_count);
}

void Schema::Tree::write_array(ObjectWriter& object, const Node& node) const {
  const std::size_t first = num_first_items(node);
  if (first > 0) {
    std::string& list = object.key("prefixItems");
    for (std::size_t i = 0; i < first; ++i) {
      list += i == 0 ? '[' : ',';
      write_child(list, node.prefix[i]);
    }
    list += ']';
  }
  if (first < node.prefix.size()) {
    object.key("items") += "false";
  } else if (node.items < 0) {
    const bool more = number_of(node, "minItems") > static_cast<std::int64_t>(first);
    object.key("items") += first == 0 || more ? "{}" : "false";
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
      write_child(
          patterns.key(node.counted_names ? counted_pattern(member.name)->unbounded : member.name),
          node.pattern_properties);
    patterns.end();
    object.key("additionalProperties") += "false";
    return;
  }
  if (node.properties.empty()) {
    const std::vector<int> names = node.names >= 0 ? names_of(node) : std::vector<int>{};
    const bool none = !allows_others(node) || (node.names >= 0 && names.empty()) ||
                      (node.additional >= 0 && !at(node.additional).productive);
    // Beside propertyNames xgrammar does not read that there are no others.
    if (node.names >= 0 && !none) write_names(object.key("propertyNames"), names);
    std::string& others = object.key("additionalProperties");
    if (none) {
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

std::vector<int> Schema::Tree::names_of(const Node& node) const {
  int work = 0;
  std::vector<int> names = ends_of(node.names, work);
  std::erase_if(names,
                [&](int end) { return !at(end).productive || (at(end).types & string_type) == 0; });
  return names;
}

void Schema::Tree::write_names(std::string& out, const std::vector<int>& names) const {
  if (names.size() == 1) return write(out, names[0], string_type, false);
  ObjectWriter object(out);
  std::string& list = object.key("anyOf");
  for (std::size_t i = 0; i < names.size(); ++i) {
    list += i == 0 ? '[' : ',';
    write(list, names[i], string_type, false);
  }
  list += ']';
  object.end();
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
  write_definitions(object, at(0), true);
  if (out.size() > 1 && body.size() > 2) out += ',';
  return out + body.substr(1);
}

void Schema::Tree::add_alternatives(int index,
                                    std::vector<SchemaProperty::Alternative>& alternatives,
                                    std::vector<int>& seen,
                                    std::size_t& bytes_left) const {
  using Alternative = SchemaProperty::Alternative;
  const auto add = [&](Alternative::Kind kind, std::string value) {
    bytes_left -= std::min(bytes_left, value.size());
    alternatives.push_back({kind, std::move(value)});
  };
  index = follow(index);
  if (std::ranges::find(seen, index) != seen.end()) return;
  seen.push_back(index);
  const Node& node = at(index);
  if (node.primary == "anyOf" || node.primary == "oneOf") {
    for (const int option : node.options)
      if (at(option).productive && bytes_left > 0)
        add_alternatives(option, alternatives, seen, bytes_left);
    return;
  }
  if (node.primary == "const" || node.primary == "enum") {
    for_each_value(node, [&](const Value& value) {
      std::string text;
      if (value.string() != nullptr)
        text = *value.string();
      else
        append_json_value(text, value);
      add(Alternative::Kind::literal, std::move(text));
    });
    return;
  }
  const bool any = allows_all(node);
  if (any || (node.types & string_type) != 0) {
    Alternative& alternative = alternatives.emplace_back();
    alternative.kind = Alternative::Kind::text;
    if (!any) {
      const std::optional<FormatPattern> form = format_of(node, false);
      const Value* pattern = node.value->find("pattern");
      if (pattern != nullptr || form) {
        alternative.kind = Alternative::Kind::pattern;
        alternative.value = pattern != nullptr ? *pattern->string() : form->pattern;
      } else {
        alternative.length_min = number_of(node, "minLength");
        if (node.value->find("maxLength") != nullptr)
          alternative.length_max = number_of(node, "maxLength");
      }
    }
  }
  const unsigned others = any ? 0 : node.types & ~static_cast<unsigned>(string_type);
  if (others != 0) add(Alternative::Kind::json, standing_alone(index, others));
}

}  // namespace koho
