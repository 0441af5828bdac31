// SPDX-License-Identifier: Apache-2.0
// The fields of a request's body as a table: name, accepted values, reader. The readers check type
// and range of every value; every refusal has the field's name. A field that is null counts as
// missing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "chat/json.h"
#include "kvcache/prefix_cache.h"

namespace koho::api {

struct FieldValue {
  std::string_view name;
  const chat::Json& json;  // not null
};

template <typename Target>
struct Field {
  std::string_view name;
  std::string_view takes;  // accepted values, for docs/server.md
  Refusal (*read)(const FieldValue& value, Target& target);
};

/// Reads the fields of `body` that `table` has, in the order of the table.
template <typename Target>
Refusal read_fields(const chat::Json& body, std::span<const Field<Target>> table, Target& target) {
  for (const Field<Target>& field : table) {
    const chat::Json* json = body.given(field.name);
    if (json == nullptr) continue;
    if (Refusal refused = field.read({.name = field.name, .json = *json}, target)) return refused;
  }
  return {};
}

/// "temperature must be a number, found a string".
ApiError must_be(const FieldValue& value, std::string_view what);

Refusal read_boolean(const FieldValue& value, bool& target);
Refusal read_text(const FieldValue& value, std::string& target, std::size_t bytes_max);
/// The value of a number without a fraction, including 1.0 and 1E0; nothing outside 64 bits.
/// With a point or an exponent it is what a double has of it.
std::optional<std::int64_t> whole_number(const chat::Json& json);
/// Within [low, high].
Refusal read_integer(const FieldValue& value,
                     std::int64_t low,
                     std::int64_t high,
                     std::int64_t& target);
Refusal read_integer(const FieldValue& value,
                     std::int32_t low,
                     std::int32_t high,
                     std::int32_t& target);
/// Within [low, high], or (low, high] if `above_low`.
Refusal read_number(
    const FieldValue& value, double low, double high, double& target, bool above_low = false);
/// An array of token ids within the vocabulary.
Refusal read_token_ids(const FieldValue& value,
                       std::int32_t vocabulary,
                       std::size_t count_max,
                       std::vector<Token>& target);
/// A string or an array of strings, none empty.
Refusal read_texts(const FieldValue& value,
                   std::size_t count_max,
                   std::size_t bytes_max,
                   std::vector<std::string>& target);

}  // namespace koho::api
