// SPDX-License-Identifier: Apache-2.0
// Values and types of JSON Schema: copies, equality, the types that a keyword names, and whether a
// listed value satisfies the other keywords beside it. Private to src/grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/json.h"

namespace koho {

json::Value copy_value(const json::Value& value);
/// What a reference "#/…" names; null: nothing.
const json::Value* at_pointer(const json::Value& root, std::string_view pointer);
/// The number of values in `value`, itself included.
std::size_t count_values(const json::Value& value);
/// A number's value without rounding; nullopt: it is none.
std::optional<long double> exact_number(const json::Value& value);
/// An integer of 64 bits, as JSON Schema has them: 2.0 is one.
std::optional<std::int64_t> whole_number(const json::Value& value);
/// 1 and 1.0 are equal; objects are equal in any order of their members.
bool equal_values(const json::Value& one, const json::Value& other);

/// The bits (Type) of a `type` keyword; an unknown name has none.
unsigned types_of(const json::Value& type);
/// A `type` keyword for these bits; for none, an enum of nothing would be meant: an empty array.
json::Value types_value(unsigned types);

/// Whether a keyword says nothing about values: a title, definitions.
bool is_note(std::string_view keyword);
/// Whether a keyword limits values by itself, not through other schemas.
bool limits_values(std::string_view keyword);
/// Whether a keyword neither limits values nor is a choice or a $ref: a note, or unknown.
bool says_nothing(std::string_view keyword);

/// Sets a member of an object, which must be one.
void set_member(json::Value& object, std::string_view name, json::Value value);
/// Removes a member and returns it; null if there is none.
json::Value take_member(json::Value& object, std::string_view name);

/// Whether a schema lists its values, and keywords beside the list and `type` may exclude some.
bool limits_listed_values(const json::Value& schema);
/// A schema that lists its values (enum, const) without those that its other keywords exclude, as
/// an enum; `false` if none is left; any other schema as it is. nullopt: a keyword cannot be
/// judged.
std::optional<json::Value> with_listed_values(json::Value schema);

/// Whether `value` satisfies the keywords of `schema`: types, lists, bounds of numbers and lengths.
/// nullopt: the schema has other keywords that limit values of this type.
std::optional<bool> satisfies(const json::Value& value, const json::Value& schema);

}  // namespace koho
