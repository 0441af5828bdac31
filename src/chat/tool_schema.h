// SPDX-License-Identifier: Apache-2.0
// What a request's tools say about their arguments: a value in GLM's tool calls has no type on the
// wire, so its type comes from the tool's JSON schema. Reads types only; it validates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"

namespace koho::chat {

/// The JSON types a value may have. Undeclared values may have any.
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

/// The types of which `value` is one instance: 3 and 3.0 are integers, as JSON Schema has it.
TypeSet type_of(const Json& value);

/// The tools of one request. Nested ({"function": {...}}) and flat tools are understood; parameters
/// stand in `parameters` or `input_schema`.
class ToolSchemas {
 public:
  ToolSchemas() = default;
  explicit ToolSchemas(const std::vector<Json>& tools);

  bool empty() const { return tools_.empty(); }
  bool has(std::string_view tool) const;
  /// The longest tool name that `text` starts with, or "".
  std::string_view name_at_start(std::string_view text) const;
  /// The types that `tool`'s schema allows for the argument `key`; any when it says nothing.
  TypeSet argument_types(std::string_view tool, std::string_view key) const;

 private:
  struct Tool {
    std::string name;
    Json parameters;
  };
  std::vector<Tool> tools_;
};

}  // namespace koho::chat
