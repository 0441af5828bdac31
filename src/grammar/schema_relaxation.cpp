// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_relaxation.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "grammar/schema_keywords.h"

namespace koho {
namespace {

using json::Member;
using json::Value;

constexpr std::array<std::string_view, 5> kStructure{"items", "prefixItems", "properties",
                                                     "required", "additionalProperties"};

template <typename Unwanted>
void leave_out(Value::Object& members, Unwanted unwanted) {
  std::erase_if(members, [&](const Member& member) { return unwanted(member.name); });
}

bool is_primary(std::string_view name) {
  return is_one_of(kPrimary, name);
}

/// Relaxes the schema's own keywords. relax_schema() visits the subschemas.
void relax_members(Value& schema, SchemaStrictness strictness) {
  Value::Object& members = *schema.object();
  const auto has = [&](std::string_view name) { return schema.find(name) != nullptr; };
  leave_out(members, [](std::string_view name) {
    return is_one_of(kUnsupported, name) || name == "uniqueItems" ||
           name == "unevaluatedProperties";
  });
  if (const Value* all = schema.find("allOf");
      all != nullptr && (all->array() == nullptr || all->array()->size() != 1))
    leave_out(members, [](std::string_view name) { return name == "allOf"; });
  const bool about_objects =
      has("properties") || has("additionalProperties") || has("patternProperties");
  const bool typed = has("type") || about_objects || has("items") || has("prefixItems");
  const auto first =
      std::ranges::find_if(members, [](const Member& member) { return is_primary(member.name); });
  if (has("const") || has("enum")) {
    const std::string_view kept = has("const") ? "const" : "enum";
    leave_out(members, [&](std::string_view name) {
      return (is_primary(name) && name != kept) || limits_type(name) != 0;
    });
  } else if (first != members.end()) {
    // With a type and a choice (anyOf, ...) together, the type is the more useful part to keep.
    const std::string kept = typed ? "" : first->name;
    leave_out(members, [&](std::string_view name) {
      return (is_primary(name) && name != kept) || (!typed && limits_type(name) != 0);
    });
    for (Member& member : members)
      if (member.name == "oneOf") member.name = "anyOf";
  } else if (!typed) {
    leave_out(members, [](std::string_view name) { return limits_type(name) != 0; });
  }
  const bool has_pattern = has("pattern");
  const bool has_properties = has("properties");
  leave_out(members, [&](std::string_view name) {
    if (strictness == SchemaStrictness::structure_only)
      return limits_type(name) != 0 && !is_one_of(kStructure, name);
    if (name == "minLength" || name == "maxLength") return has_pattern;
    if (name == "minProperties" || name == "patternProperties" || name == "propertyNames")
      return has_properties || name == "minProperties";
    return false;
  });
}

}  // namespace

void relax_schema(Value& root, SchemaStrictness strictness) {
  std::vector<Value*> open{&root};
  while (!open.empty()) {
    Value& schema = *open.back();
    open.pop_back();
    if (schema.object() == nullptr) continue;
    // A root without `properties` stays as it is: relaxed, it would describe a tool without
    // arguments.
    if (&schema != &root || root.find("properties") != nullptr) relax_members(schema, strictness);
    if (&schema == &root)  // a call's arguments are not counted
      leave_out(*schema.object(), [](std::string_view name) {
        return name == "minProperties" || name == kMaxProperties;
      });
    for (Member& member : *schema.object()) {
      const std::string_view name = member.name;
      const bool named = name == "properties" || name == "patternProperties" || name == "$defs" ||
                         name == "definitions";
      if (named && member.value.object() != nullptr) {
        for (Member& one : *member.value.object()) open.push_back(&one.value);
      } else if (name == "items" || name == "additionalProperties" || name == "propertyNames") {
        open.push_back(&member.value);
      } else if (is_one_of(kPrimary, name) || name == "prefixItems") {
        if (name == "const" || name == "enum" || member.value.array() == nullptr) continue;
        for (Value& one : *member.value.array()) open.push_back(&one);
      }
    }
  }
}

}  // namespace koho
