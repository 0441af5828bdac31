// SPDX-License-Identifier: Apache-2.0
// The types of tool arguments. GLM writes the value of an argument as text without a type, so the
// type must come from the JSON schema of the request's tool.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"

namespace koho::chat {

/// A set of JSON types that a value may have. An undeclared argument may have any.
class TypeSet {
 public:
  enum Type : std::uint8_t {
    string = 1,
    integer = 2,
    fraction = 4,  // a number that is not an integer
    boolean = 8,
    null = 16,
    array = 32,
    object = 64
  };
  static constexpr std::uint8_t kNumber = integer | fraction;
  static constexpr std::uint8_t kAny = 127;

  constexpr TypeSet(std::uint8_t types) : types_(types) {}  // NOLINT: TypeSet::string is a set
  constexpr bool has(std::uint8_t types) const { return (types_ & types) == types; }
  constexpr bool is_any() const { return types_ == kAny; }
  constexpr bool empty() const { return types_ == 0; }
  constexpr TypeSet operator|(TypeSet other) const {
    return static_cast<std::uint8_t>(types_ | other.types_);
  }
  constexpr TypeSet operator&(TypeSet other) const {
    return static_cast<std::uint8_t>(types_ & other.types_);
  }
  friend constexpr bool operator==(TypeSet, TypeSet) = default;

 private:
  std::uint8_t types_;
};

/// The type of `value`. 3 and 3.0 are integers, as in JSON Schema.
TypeSet type_of(const Json& value);

/// The tools of a request, nested ({"function": {...}}) or flat, with their schema in `parameters`
/// or
/// `input_schema`.
class ToolSchemas {
 public:
  ToolSchemas() = default;
  explicit ToolSchemas(const std::vector<Json>& tools);

  bool empty() const { return tools_.empty(); }
  bool has(std::string_view tool) const;
  /// The longest tool name that `text` starts with, or "".
  std::string_view name_at_start(std::string_view text) const;
  /// Whether the schema of `tool` has a property of that name.
  bool names_argument(std::string_view tool, std::string_view key) const;
  /// The types that the schema of `tool` allows for the argument `key`; any if it declares none.
  TypeSet argument_types(std::string_view tool, std::string_view key) const;
  /// Whether that schema allows `value`, as far as it reads: types, lists, bounds, items, members
  /// and choices of these; true if `tool` does not declare the argument.
  bool allows(std::string_view tool, std::string_view key, const Json& value) const;

 private:
  struct Tool {
    std::string name;
    Json parameters;
  };
  /// Null: there is no such tool.
  const Json* parameters_of(std::string_view tool) const;

  std::vector<Tool> tools_;
};

}  // namespace koho::chat
