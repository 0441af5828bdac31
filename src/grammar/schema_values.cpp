// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "grammar/schema_keywords.h"
#include "grammar/schema_tree.h"
#include "grammar/string_lengths.h"

namespace koho {

Value copy_value(const Value& value) {  // recursive; the JSON parser has bounded the depth
  switch (value.kind()) {
    case Kind::null:
      return Value();
    case Kind::boolean:
      return Value(*value.boolean());
    case Kind::integer:
      return Value(*value.integer());
    case Kind::real:
      return Value(*value.number());
    case Kind::string:
      return Value(*value.string());
    case Kind::array: {
      Value::Array items;
      for (const Value& item : *value.array()) items.push_back(copy_value(item));
      return Value(std::move(items));
    }
    case Kind::object: {
      Value::Object members;
      for (const json::Member& member : *value.object())
        members.push_back({member.name, copy_value(member.value)});
      return Value(std::move(members));
    }
  }
  return Value();
}

const Value* at_pointer(const Value& root, std::string_view pointer) {
  if (!pointer.starts_with('#')) return nullptr;
  pointer.remove_prefix(1);
  const Value* here = &root;
  while (!pointer.empty()) {
    if (pointer.front() != '/') return nullptr;
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string_view name = pointer.substr(1, end - 1);
    if (name.find_first_of("~%") != name.npos) return nullptr;
    here = here->find(name);
    if (here == nullptr) return nullptr;
    pointer.remove_prefix(end);
  }
  return here;
}

std::size_t count_values(const Value& value) {
  std::size_t count = 1;
  if (value.array() != nullptr)
    for (const Value& item : *value.array()) count += count_values(item);
  if (value.object() != nullptr)
    for (const json::Member& member : *value.object()) count += count_values(member.value);
  return count;
}

std::optional<long double> exact_number(const Value& value) {
  if (const std::optional<std::int64_t> whole = value.integer())
    return static_cast<long double>(*whole);
  return value.number();
}

std::optional<std::int64_t> whole_number(const Value& value) {
  constexpr double kEnd = 0x1p63;
  if (value.kind() != Kind::real) return value.integer();
  const double number = *value.number();
  if (number != std::trunc(number) || number < -kEnd || number >= kEnd) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

bool equal_values(const Value& one, const Value& other) {
  if (one.number() && other.number()) return exact_number(one) == exact_number(other);
  if (one.kind() != other.kind()) return false;
  switch (one.kind()) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return *one.boolean() == *other.boolean();
    case Kind::integer:
    case Kind::real:
      return *one.number() == *other.number();
    case Kind::string:
      return *one.string() == *other.string();
    case Kind::array:
      return std::ranges::equal(*one.array(), *other.array(), equal_values);
    case Kind::object:
      return one.object()->size() == other.object()->size() &&
             std::ranges::all_of(*one.object(), [&](const json::Member& member) {
               const Value* same = other.find(member.name);
               return same != nullptr && equal_values(member.value, *same);
             });
  }
  return false;
}

unsigned types_of(const Value& type) {
  const auto one = [](const Value& name) -> unsigned {
    if (name.string() == nullptr) return 0;
    for (const auto& [known, bit] : kTypeNames)
      if (known == *name.string())
        return bit == number_type ? unsigned{number_type | integer_type} : unsigned{bit};
    return 0;
  };
  if (type.array() == nullptr) return one(type);
  unsigned types = 0;
  for (const Value& name : *type.array()) types |= one(name);
  return types;
}

Value types_value(unsigned types) {
  Value::Array names;
  for (const auto& [name, bit] : kTypeNames) {
    if ((types & bit) == 0 || (bit == integer_type && (types & number_type) != 0)) continue;
    names.push_back(Value(std::string(name)));
  }
  if (names.size() == 1) return std::move(names.front());
  return Value(std::move(names));
}

bool is_note(std::string_view keyword) {
  constexpr std::array<std::string_view, 12> kNotes{
      "title", "description", "default",  "examples",  "$comment", "$schema",
      "$id",   "deprecated",  "readOnly", "writeOnly", "$defs",    "definitions"};
  return is_one_of(kNotes, keyword);
}

bool limits_values(std::string_view keyword) {
  return keyword == "type" || keyword == "enum" || keyword == "const" ||
         limits_type(keyword) != 0 || is_one_of(kUnsupported, keyword) ||
         keyword == "uniqueItems" || keyword == "unevaluatedProperties";
}

bool says_nothing(std::string_view keyword) {
  return !limits_values(keyword) && !is_one_of(kPrimary, keyword);
}

void set_member(Value& object, std::string_view name, Value value) {
  for (json::Member& member : *object.object()) {
    if (member.name != name) continue;
    member.value = std::move(value);
    return;
  }
  object.object()->push_back({std::string(name), std::move(value)});
}

Value take_member(Value& object, std::string_view name) {
  Value taken;
  for (json::Member& member : *object.object())
    if (member.name == name) taken = std::move(member.value);
  std::erase_if(*object.object(), [&](const json::Member& member) { return member.name == name; });
  return taken;
}

bool limits_listed_values(const Value& schema) {
  const bool one = schema.find("const") != nullptr;
  const bool list = schema.find("enum") != nullptr;
  return (one && list) || ((one || list) && std::ranges::any_of(*schema.object(), [](auto& member) {
                             return limits_values(member.name) && member.name != "type" &&
                                    member.name != "const" && member.name != "enum";
                           }));
}

std::optional<Value> with_listed_values(Value schema) {
  const bool one = schema.find("const") != nullptr;
  if (!one && schema.find("enum") == nullptr) return schema;
  Value list = take_member(schema, one ? "const" : "enum");
  Value::Array listed;
  if (one) {
    listed.push_back(std::move(list));
  } else {
    if (list.array() == nullptr) return std::nullopt;
    listed = std::move(*list.array());
  }
  Value::Array kept;
  for (Value& value : listed) {
    const std::optional<bool> valid = satisfies(value, schema);
    if (!valid) return std::nullopt;
    if (*valid) kept.push_back(std::move(value));
  }
  if (kept.empty()) return Value(false);
  Value made = Value(Value::Object());
  for (json::Member& member : *schema.object())
    if (is_note(member.name)) made.object()->push_back(std::move(member));
  set_member(made, "enum", Value(std::move(kept)));
  return made;
}

std::optional<bool> satisfies(const Value& value, const Value& schema) {
  unsigned own = 0;
  for (const auto& [name, bit] : kTypeNames)
    if (has_type(value, bit)) own |= bit;
  for (const json::Member& member : *schema.object()) {
    const std::string_view name = member.name;
    const Value& limit = member.value;
    if (name == "type") {
      if (!has_type(value, types_of(limit))) return false;
      continue;
    }
    if (name == "const") {
      if (!equal_values(value, limit)) return false;
      continue;
    }
    if (name == "enum") {
      if (limit.array() == nullptr) return std::nullopt;
      if (std::ranges::none_of(*limit.array(),
                               [&](const Value& one) { return equal_values(one, value); }))
        return false;
      continue;
    }
    const unsigned unjudged = name == "uniqueItems"             ? unsigned{array_type}
                              : name == "unevaluatedProperties" ? unsigned{object_type}
                                                                : 0;
    if (is_one_of(kUnsupported, name) || (unjudged & own) != 0) return std::nullopt;
    // Beside a list, a format restricts nothing, as JSON Schema lets it.
    if ((limits_type(name) & own) == 0 || name == "format") continue;
    long double size = 0.0;
    if (value.number()) {
      size = *exact_number(value);
    } else if (value.string() != nullptr) {
      size = static_cast<long double>(std::ranges::count_if(*value.string(), begins_character));
    } else if (value.array() != nullptr) {
      size = static_cast<long double>(value.array()->size());
    } else {
      return std::nullopt;
    }
    if (!limit.number()) return std::nullopt;
    const long double bound = *exact_number(limit);
    bool good = false;
    if (name == "minimum" || name == "minLength" || name == "minItems") {
      good = size >= bound;
    } else if (name == "maximum" || name == "maxLength" || name == "maxItems") {
      good = size <= bound;
    } else if (name == "exclusiveMinimum") {
      good = size > bound;
    } else if (name == "exclusiveMaximum") {
      good = size < bound;
    } else {
      return std::nullopt;
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace koho
