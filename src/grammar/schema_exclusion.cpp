// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_exclusion.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/pattern_rewrite.h"
#include "grammar/schema_tree.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

using json::Member;

/// Whether pattern_without() can exclude a word.
bool is_writable(std::string_view word) {
  return !word.empty() && word.size() <= kExcludedBytesMax && std::ranges::all_of(word, [](char c) {
    return c >= ' ' && c < '\x7f' && c != '"' && c != '\\';
  });
}

std::optional<std::vector<Value>> exclude_each(Value schema, const Value& list) {
  if (list.array() == nullptr) return std::nullopt;
  std::vector<Value> made;
  made.push_back(std::move(schema));
  for (const Value& one : *list.array()) {
    std::vector<Value> next;
    for (Value& option : made) {
      std::optional<std::vector<Value>> rest = exclude(std::move(option), one);
      if (!rest) return std::nullopt;
      for (Value& value : *rest) next.push_back(std::move(value));
    }
    if (next.size() > kAlternativesMax) return std::nullopt;
    made = std::move(next);
  }
  return made;
}

std::optional<std::vector<Value>> exclude_types(Value schema, unsigned excluded) {
  if (schema.object() == nullptr) return std::vector<Value>{};
  unsigned types = kAnyType;
  if (const Value* given = schema.find("type")) types = types_of(*given);
  // "number" without "integer" has no keyword.
  if ((excluded & number_type) != 0) excluded |= integer_type;
  if ((excluded & integer_type) != 0 && (excluded & number_type) == 0 && (types & number_type) != 0)
    return std::nullopt;
  if (schema.find("enum") != nullptr || schema.find("const") != nullptr) {
    set_member(schema, "type", types_value(types & ~excluded));
    std::optional<Value> kept = with_listed_values(std::move(schema));
    if (!kept) return std::nullopt;
    std::vector<Value> made;
    made.push_back(*std::move(kept));
    return made;
  }
  std::vector<Value> made;
  if ((types & ~excluded) == 0) return made;
  set_member(schema, "type", types_value(types & ~excluded));
  made.push_back(std::move(schema));
  return made;
}

/// Not all of these members: one of them is missing.
std::optional<std::vector<Value>> exclude_required(Value schema, const Value& names) {
  if (names.array() == nullptr || names.array()->size() > kAlternativesMax ||
      schema.object() == nullptr)
    return std::nullopt;
  std::vector<Value> made;
  for (const Value& name : *names.array()) {
    if (name.string() == nullptr) return std::nullopt;
    Value one = copy_value(schema);
    // Of other types every value has all members that it must have.
    unsigned types = object_type;
    if (const Value* given = one.find("type")) types &= types_of(*given);
    if (types == 0) continue;
    set_member(one, "type", types_value(types));
    Value properties = take_member(one, "properties");
    if (properties.object() == nullptr) properties = Value(Value::Object());
    set_member(properties, *name.string(), Value(false));
    set_member(one, "properties", std::move(properties));
    made.push_back(std::move(one));
  }
  return made;
}

std::optional<std::vector<Value>> exclude_values(Value schema,
                                                 std::string_view name,
                                                 const Value& content) {
  if (schema.object() == nullptr) return std::vector<Value>{};
  std::vector<const Value*> values;
  if (name == "const") values.push_back(&content);
  if (name == "enum" && content.array() != nullptr)
    for (const Value& value : *content.array()) values.push_back(&value);
  std::vector<Value> made;
  if (schema.find("enum") != nullptr || schema.find("const") != nullptr) {
    std::optional<Value> kept = with_listed_values(std::move(schema));
    if (!kept) return std::nullopt;
    if (kept->object() == nullptr) return made;
    Value list = take_member(*kept, "enum");
    std::erase_if(*list.array(), [&](const Value& one) {
      return std::ranges::any_of(values,
                                 [&](const Value* value) { return equal_values(one, *value); });
    });
    if (list.array()->empty()) return made;
    set_member(*kept, "enum", std::move(list));
    made.push_back(*std::move(kept));
    return made;
  }
  const Value* given = schema.find("type");
  const unsigned types = given == nullptr ? kAnyType : types_of(*given);
  std::vector<std::string> words;
  for (const Value* value : values) {
    if (!has_type(*value, types)) continue;
    if (types != string_type || value->string() == nullptr || !is_writable(*value->string()))
      return std::nullopt;
    words.push_back(*value->string());
  }
  if (!words.empty()) {
    for (const std::string_view other : {"pattern", "minLength", "maxLength", "format"})
      if (schema.find(other) != nullptr) return std::nullopt;
    set_member(schema, "pattern", Value("^" + pattern_without(words, false, true) + "$"));
  }
  made.push_back(std::move(schema));
  return made;
}

}  // namespace

std::optional<std::vector<Value>> exclude(Value schema, const Value& excluded) {
  std::vector<Value> made;
  if (excluded.kind() == Kind::boolean || excluded.object() == nullptr ||
      excluded.object()->empty()) {
    if (excluded.object() == nullptr && excluded.kind() != Kind::boolean) return std::nullopt;
    const bool none = excluded.boolean() == false;
    made.push_back(none ? std::move(schema) : Value(false));
    return made;
  }
  const Value* only = nullptr;
  std::string_view name;
  for (const Member& member : *excluded.object()) {
    if (is_note(member.name)) continue;
    if (only != nullptr) return std::nullopt;
    only = &member.value;
    name = member.name;
  }
  if (only == nullptr) {
    made.push_back(Value(false));
    return made;
  }
  if (name == "anyOf") return exclude_each(std::move(schema), *only);
  if (name == "type") return exclude_types(std::move(schema), types_of(*only));
  if (name == "required") return exclude_required(std::move(schema), *only);
  if (name == "const" || name == "enum") return exclude_values(std::move(schema), name, *only);
  return std::nullopt;
}

}  // namespace koho
