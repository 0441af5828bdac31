// SPDX-License-Identifier: Apache-2.0
// The fields of a request's body as a table: name, what it takes, how it is read. Every value is
// checked for its type and range here, once; every refusal names its field. A field that is null
// counts as not given.
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
  std::string_view takes;  // for the documentation
  Refusal (*read)(const FieldValue& value, Target& target);
};

/// Reads the fields of `body` that stand in `table`, in the order of the table.
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
/// The value of a number without a fraction, 1.0 and 1E0 among them; nothing beyond 64 bits, or
/// where a double is not exact.
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
/// An array of ids of the vocabulary.
Refusal read_token_ids(const FieldValue& value,
                       std::int32_t vocabulary,
                       std::size_t count_max,
                       std::vector<Token>& target);
/// One string or an array of them, none empty.
Refusal read_texts(const FieldValue& value,
                   std::size_t count_max,
                   std::size_t bytes_max,
                   std::vector<std::string>& target);

}  // namespace koho::api
