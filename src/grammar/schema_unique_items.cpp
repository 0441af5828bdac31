// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_unique_items.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/schema_tree.h"
#include "grammar/schema_values.h"

namespace koho {
namespace {

/// Whether all keywords that say something are `known`.
bool has_only(const Value& schema, std::initializer_list<std::string_view> known) {
  return std::ranges::all_of(*schema.object(), [&](const json::Member& member) {
    return std::ranges::find(known, member.name) != known.end() || says_nothing(member.name);
  });
}

/// The values of a schema that lists scalars; empty: it does not.
std::vector<Value> listed(const Value* items) {
  if (items == nullptr || items->object() == nullptr) return {};
  for (const std::string_view name : {"$ref", "anyOf", "oneOf", "allOf"})
    if (items->find(name) != nullptr) return {};
  std::vector<Value> given;
  const Value* list = items->find("enum");
  if (list != nullptr && list->array() != nullptr) {
    for (const Value& value : *list->array()) given.push_back(copy_value(value));
  } else if (const Value* type = items->find("type")) {
    if (types_of(*type) == boolean_type)
      for (const bool value : {true, false}) given.push_back(Value(value));
    if (types_of(*type) == null_type) given.push_back(Value());
  }
  std::vector<Value> values;
  for (Value& value : given) {
    if (value.array() != nullptr || value.object() != nullptr) return {};
    const std::optional<bool> valid = satisfies(value, *items);
    if (!valid) return {};
    const bool again =
        std::ranges::any_of(values, [&](const Value& one) { return equal_values(one, value); });
    if (*valid && !again) values.push_back(std::move(value));
  }
  return values;
}

void list_arrays(const std::vector<Value>& values,
                 std::size_t least,
                 std::size_t most,
                 bool any_order,
                 std::vector<std::size_t>& chosen,
                 Value::Array& options) {
  if (chosen.size() >= least) {
    Value::Array items;
    for (const std::size_t index : chosen) {
      Value item = Value(Value::Object());
      Value::Array one;
      one.push_back(copy_value(values[index]));
      set_member(item, "enum", Value(std::move(one)));
      items.push_back(std::move(item));
    }
    Value array = Value(Value::Object());
    set_member(array, "type", Value(std::string("array")));
    if (chosen.empty()) {
      set_member(array, "maxItems", Value(std::int64_t{0}));
    } else {
      set_member(array, "minItems", Value(static_cast<std::int64_t>(chosen.size())));
      set_member(array, "prefixItems", Value(std::move(items)));
      set_member(array, "items", Value(false));
    }
    options.push_back(std::move(array));
  }
  if (chosen.size() == most) return;
  for (std::size_t i = any_order || chosen.empty() ? 0 : chosen.back() + 1; i < values.size();
       ++i) {
    if (std::ranges::find(chosen, i) != chosen.end()) continue;
    chosen.push_back(i);
    list_arrays(values, least, most, any_order, chosen, options);
    chosen.pop_back();
  }
}

}  // namespace

std::optional<Value> without_unique_items(const Value& schema, const Value* items) {
  constexpr std::size_t kAnyOrderMax = 5;
  constexpr std::size_t kItemsMax = 8;
  if (schema.find("uniqueItems") == nullptr || schema.find("uniqueItems")->boolean() != true)
    return std::nullopt;
  const Value* type = schema.find("type");
  if (type == nullptr || types_of(*type) != array_type) return std::nullopt;
  const auto bound = [&](std::string_view name, std::size_t otherwise) -> std::size_t {
    const Value* given = schema.find(name);
    const std::optional<std::int64_t> value =
        given == nullptr ? std::nullopt : whole_number(*given);
    return value && *value >= 0 ? static_cast<std::size_t>(*value) : otherwise;
  };
  std::size_t most = bound("maxItems", ~std::size_t{0});
  if (most <= 1) {
    Value made = copy_value(schema);
    take_member(made, "uniqueItems");
    return made;
  }
  // The list takes the place of the whole schema.
  if (!has_only(schema, {"type", "items", "minItems", "maxItems", "uniqueItems"}))
    return std::nullopt;
  for (const std::string_view name : {"minItems", "maxItems"})
    if (const Value* given = schema.find(name); given != nullptr && !whole_number(*given))
      return std::nullopt;
  std::vector<Value> values = listed(items);
  const std::size_t least = bound("minItems", 0);
  if (values.empty() || values.size() > kItemsMax) return std::nullopt;
  most = std::min(most, values.size());
  if (least > most) return Value(false);
  Value::Array options;
  std::vector<std::size_t> chosen;
  list_arrays(values, least, most, values.size() <= kAnyOrderMax, chosen, options);
  Value made = Value(Value::Object());
  set_member(made, "anyOf", Value(std::move(options)));
  return made;
}

}  // namespace koho
