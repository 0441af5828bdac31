// SPDX-License-Identifier: Apache-2.0
// The types of JSON Schema as bits, and its keywords by their effect. Private to src/grammar.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace koho {

enum Type : unsigned {
  string_type = 1,
  integer_type = 2,
  number_type = 4,
  boolean_type = 8,
  null_type = 16,
  array_type = 32,
  object_type = 64
};
inline constexpr unsigned kAnyType = 127;

/// Keywords that define a schema by themselves. A schema has at most one of them.
inline constexpr std::array<std::string_view, 6> kPrimary{"$ref",  "const", "enum",
                                                          "anyOf", "oneOf", "allOf"};
/// Keywords that limit the values of a type, with that type.
inline constexpr std::array<std::pair<std::string_view, unsigned>, 19> kLimiting{{
    {"minLength", string_type},
    {"maxLength", string_type},
    {"pattern", string_type},
    {"format", string_type},
    {"minimum", integer_type | number_type},
    {"maximum", integer_type | number_type},
    {"exclusiveMinimum", integer_type | number_type},
    {"exclusiveMaximum", integer_type | number_type},
    {"multipleOf", integer_type | number_type},
    {"items", array_type},
    {"prefixItems", array_type},
    {"minItems", array_type},
    {"maxItems", array_type},
    {"properties", object_type},
    {"required", object_type},
    {"additionalProperties", object_type},
    {"patternProperties", object_type},
    {"propertyNames", object_type},
    {"minProperties", object_type},
}};
inline constexpr std::string_view kMaxProperties = "maxProperties";
/// Keywords that a grammar cannot express.
inline constexpr std::array<std::string_view, 18> kUnsupported{"not",
                                                               "if",
                                                               "then",
                                                               "else",
                                                               "dependentRequired",
                                                               "dependentSchemas",
                                                               "dependencies",
                                                               "contains",
                                                               "minContains",
                                                               "maxContains",
                                                               "unevaluatedItems",
                                                               "additionalItems",
                                                               "$dynamicRef",
                                                               "$recursiveRef",
                                                               "$anchor",
                                                               "$dynamicAnchor",
                                                               "extends",
                                                               "disallow"};
/// The types whose values `keyword` limits; 0 for any other keyword.
inline unsigned limits_type(std::string_view keyword) {
  if (keyword == kMaxProperties) return object_type;
  for (const auto& [known, types] : kLimiting)
    if (known == keyword) return types;
  return 0;
}

template <std::size_t N>
constexpr bool is_one_of(const std::array<std::string_view, N>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace koho
