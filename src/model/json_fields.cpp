// SPDX-License-Identifier: Apache-2.0
#include "model/json_fields.h"

#include <utility>

#include "base/printable.h"

namespace koho {

std::string describe_value(const json::Value& value) {
  if (const std::string* text = value.string())
    return fmt::format("the string '{}'", printable(*text));
  if (const auto integer = value.integer()) return std::to_string(*integer);
  if (const auto number = value.number()) return fmt::format("{:#}", *number);
  if (const auto boolean = value.boolean()) return *boolean ? "true" : "false";
  return std::string(json::kind_name(value.kind()));
}

JsonFields::JsonFields(std::string place, const json::Value& object)
    : place_(std::move(place)), object_(object) {
  KOHO_CHECK(object.object() != nullptr);
}

const json::Value* JsonFields::find(const char* key) {
  read_.insert(key);
  const json::Value* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<const json::Value*> JsonFields::need(const char* key) {
  read_.insert(key);
  if (const json::Value* value = object_.find(key)) return value;
  return make_error(ErrorCode::invalid_argument,
                    "{}: the key '{}' is missing (koho assumes no default)", place_, key);
}

Result<std::int64_t> JsonFields::integer(const char* key, std::int64_t least, std::int64_t most) {
  KOHO_TRY_ASSIGN(const json::Value* value, need(key));
  const std::optional<std::int64_t> number = value->integer();
  if (!number || *number < least || *number > most)
    return wrong(key, *value, fmt::format("an integer from {} to {}", least, most));
  return *number;
}

Result<double> JsonFields::number_above(const char* key, double least, double most) {
  KOHO_TRY_ASSIGN(const json::Value* value, need(key));
  const std::optional<double> number = value->number();
  if (!number || !(*number > least && *number <= most))
    return wrong(key, *value, fmt::format("a number above {} and up to {}", least, most));
  return *number;
}

Result<bool> JsonFields::boolean(const char* key) {
  KOHO_TRY_ASSIGN(const json::Value* value, need(key));
  const std::optional<bool> flag = value->boolean();
  if (!flag) return wrong(key, *value, "true or false");
  return *flag;
}

Result<std::string> JsonFields::text(const char* key) {
  KOHO_TRY_ASSIGN(const json::Value* value, need(key));
  if (value->string() == nullptr) return wrong(key, *value, "a string");
  return *value->string();
}

Error JsonFields::wrong(const char* key,
                        const json::Value& found,
                        std::string_view expected) const {
  return make_error(ErrorCode::invalid_argument, "{}: '{}' is {}; expected {}", place_, key,
                    describe_value(found), expected);
}

std::vector<std::string> JsonFields::unread() const {
  std::vector<std::string> keys;
  for (const json::Member& member : *object_.object())
    if (read_.find(member.name) == read_.end()) keys.push_back(member.name);
  return keys;
}

}  // namespace koho
