// SPDX-License-Identifier: Apache-2.0
#include "validator.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <cmath>
#include <memory>
#include <optional>
#include <pcre2.h>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json_pointer.h"

namespace koho::testing {
namespace {

using json::Kind;
using json::Value;

bool matches(const std::string& pattern, const std::string& text) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr),
      pcre2_code_free);
  if (code == nullptr) return false;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = pcre2_match(code.get(), subject, text.size(), 0, 0, data.get(), nullptr);
  if (found == PCRE2_ERROR_MATCHLIMIT) {  // of an expression that it would retrace for ever
    std::vector<int> workspace(10'000);
    found = pcre2_dfa_match(code.get(), subject, text.size(), 0, PCRE2_DFA_SHORTEST, data.get(),
                            nullptr, workspace.data(), workspace.size());
  }
  KOHO_CHECK(found >= 0 || found == PCRE2_ERROR_NOMATCH);
  return found >= 0;
}

bool equal(const Value& a, const Value& b) {
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return a.boolean() == b.boolean();
    case Kind::string:
      return *a.string() == *b.string();
    case Kind::array:
      if (a.array()->size() != b.array()->size()) return false;
      for (std::size_t i = 0; i < a.array()->size(); ++i)
        if (!equal((*a.array())[i], (*b.array())[i])) return false;
      return true;
    default:
      if (a.object()->size() != b.object()->size()) return false;
      for (const json::Member& member : *a.object())
        if (const Value* other = b.find(member.name);
            other == nullptr || !equal(member.value, *other))
          return false;
      return true;
  }
}

bool is_type(const std::string& type, const Value& value) {
  if (type == "integer") return value.number() && *value.number() == std::floor(*value.number());
  if (type == "number") return value.number().has_value();
  if (type == "string") return value.string() != nullptr;
  if (type == "boolean") return value.boolean().has_value();
  if (type == "null") return value.is_null();
  if (type == "array") return value.array() != nullptr;
  return type == "object" && value.object() != nullptr;
}

class Validator {
 public:
  explicit Validator(const Value& root) : root_(root) {}

  std::string check(const Value& schema, const Value& value) const {
    if (schema.boolean()) return *schema.boolean() ? "" : "nothing is valid";
    if (const Value* ref = schema.find("$ref"))
      if (std::string wrong = check(*resolve(*ref->string()), value); !wrong.empty()) return wrong;
    if (const Value* excluded = schema.find("not"); excluded && check(*excluded, value).empty())
      return "is what it must not be";
    if (const Value* one = schema.find("const"); one != nullptr && !equal(*one, value))
      return "is not the const";
    if (const Value* list = schema.find("enum")) {
      bool found = false;
      for (const Value& one : *list->array()) found = found || equal(one, value);
      if (!found) return "is not in the enum";
    }
    if (const Value* list = schema.find("anyOf")) {
      bool found = false;
      for (const Value& one : *list->array()) found = found || check(one, value).empty();
      if (!found) return "is none of anyOf";
    }
    if (const Value* list = schema.find("oneOf")) {
      int found = 0;
      for (const Value& one : *list->array()) found += check(one, value).empty() ? 1 : 0;
      if (found != 1) return "is not exactly one of oneOf";
    }
    if (const Value* list = schema.find("allOf"))
      for (const Value& one : *list->array())
        if (std::string wrong = check(one, value); !wrong.empty()) return wrong;
    if (const Value* type = schema.find("type")) {
      bool found = type->string() != nullptr && is_type(*type->string(), value);
      if (type->array() != nullptr)
        for (const Value& one : *type->array()) found = found || is_type(*one.string(), value);
      if (!found) return "has another type";
    }
    if (value.number()) return check_number(schema, *value.number());
    if (value.string() != nullptr) return check_text(schema, *value.string());
    if (value.array() != nullptr) return check_array(schema, *value.array());
    return value.object() == nullptr ? "" : check_object(schema, value);
  }

 private:
  const Value* resolve(std::string_view pointer) const {
    const Value* at = &root_;
    const std::optional<std::vector<std::string>> steps = pointer_steps(pointer);
    KOHO_CHECK(steps);
    for (const std::string& step : *steps) {
      at = at->array() != nullptr ? &at->array()->at(std::stoul(step)) : at->find(step);
      KOHO_CHECK(at != nullptr);
    }
    return at;
  }

  static std::string check_number(const Value& schema, double value) {
    const auto beyond = [&](const char* keyword, auto compare) {
      const Value* bound = schema.find(keyword);
      return bound != nullptr && !compare(value, *bound->number());
    };
    const bool wrong =
        beyond("minimum", std::greater_equal<>()) || beyond("maximum", std::less_equal<>()) ||
        beyond("exclusiveMinimum", std::greater<>()) || beyond("exclusiveMaximum", std::less<>());
    return wrong ? "is out of range" : "";
  }

  static std::string check_text(const Value& schema, const std::string& text) {
    std::int64_t characters = 0;
    for (const char c : text) characters += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (const Value* least = schema.find("minLength"); least && characters < *least->integer())
      return "is too short";
    if (const Value* most = schema.find("maxLength"); most && characters > *most->integer())
      return "is too long";
    const Value* pattern = schema.find("pattern");
    return pattern != nullptr && !matches(*pattern->string(), text) ? "does not match" : "";
  }

  std::string check_array(const Value& schema, const Value::Array& array) const {
    const auto size = static_cast<std::int64_t>(array.size());
    if (const Value* least = schema.find("minItems"); least && size < *least->integer())
      return "has too few items";
    if (const Value* most = schema.find("maxItems"); most && size > *most->integer())
      return "has too many items";
    if (const Value* unique = schema.find("uniqueItems"); unique && *unique->boolean())
      for (std::size_t i = 0; i < array.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          if (equal(array[i], array[j])) return "has an item twice";
    const Value* prefix = schema.find("prefixItems");
    const Value* items = schema.find("items");
    for (std::size_t i = 0; i < array.size(); ++i) {
      const bool first = prefix != nullptr && i < prefix->array()->size();
      const Value* own = first ? &(*prefix->array())[i] : items;
      if (own == nullptr) continue;
      if (std::string wrong = check(*own, array[i]); !wrong.empty())
        return "item " + std::to_string(i) + " " + wrong;
    }
    return "";
  }

  std::string check_object(const Value& schema, const Value& value) const {
    const auto size = static_cast<std::int64_t>(value.object()->size());
    if (const Value* least = schema.find("minProperties"); least && size < *least->integer())
      return "has too few members";
    if (const Value* most = schema.find("maxProperties"); most && size > *most->integer())
      return "has too many members";
    if (const Value* required = schema.find("required"))
      for (const Value& name : *required->array())
        if (value.find(*name.string()) == nullptr) return "lacks " + *name.string();
    const Value* properties = schema.find("properties");
    const Value* others = schema.find("additionalProperties");
    for (const json::Member& member : *value.object()) {
      const Value* own = properties == nullptr ? nullptr : properties->find(member.name);
      if (own == nullptr) own = others;
      if (own == nullptr) continue;
      if (std::string wrong = check(*own, member.value); !wrong.empty())
        return member.name + " " + wrong;
    }
    return "";
  }

  const Value& root_;
};

}  // namespace

std::string validate_json(const json::Value& root, const json::Value& value) {
  return Validator(root).check(root, value);
}

}  // namespace koho::testing
