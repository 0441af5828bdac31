// SPDX-License-Identifier: Apache-2.0
#include "api/field_table.h"

#include <cmath>

#include <fmt/core.h>

namespace koho::api {

using chat::Json;

ApiError must_be(const FieldValue& value, std::string_view what) {
  return wrong_field(value.name, fmt::format("{} must be {}, found {}", value.name, what,
                                             chat::kind_name(value.json.kind)));
}

Refusal read_boolean(const FieldValue& value, bool& target) {
  if (value.json.kind != Json::Kind::boolean) return must_be(value, "true or false");
  target = value.json.boolean;
  return {};
}

Refusal read_text(const FieldValue& value, std::string& target, std::size_t bytes_max) {
  if (!value.json.is_string()) return must_be(value, "a string");
  if (value.json.text.size() > bytes_max)
    return wrong_field(value.name, fmt::format("{} may have at most {} bytes, found {}", value.name,
                                               bytes_max, value.json.text.size()));
  target = value.json.text;
  return {};
}

std::optional<std::int64_t> whole_number(const Json& json) {
  if (json.is_integer()) return json.as_integer();
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  const std::optional<double> number = json.as_number();
  if (!number || std::trunc(*number) != *number || *number < -kEnd || *number >= kEnd)
    return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

Refusal read_integer(const FieldValue& value,
                     std::int64_t low,
                     std::int64_t high,
                     std::int64_t& target) {
  const std::optional<std::int64_t> parsed = whole_number(value.json);
  if (!parsed && !value.json.is_integer()) return must_be(value, "an integer");
  if (!parsed || *parsed < low || *parsed > high)
    return wrong_field(value.name, fmt::format("{} must be in {}..{}, found {:.24}", value.name,
                                               low, high, std::string_view(value.json.text)));
  target = *parsed;
  return {};
}

Refusal read_integer(const FieldValue& value,
                     std::int32_t low,
                     std::int32_t high,
                     std::int32_t& target) {
  std::int64_t wide = 0;
  if (Refusal refused = read_integer(value, std::int64_t{low}, std::int64_t{high}, wide))
    return refused;
  target = static_cast<std::int32_t>(wide);
  return {};
}

Refusal read_number(
    const FieldValue& value, double low, double high, double& target, bool above_low) {
  if (!value.json.is_number()) return must_be(value, "a number");
  const std::optional<double> parsed = value.json.as_number();
  if (!parsed || *parsed < low || *parsed > high || (above_low && *parsed == low))
    return wrong_field(value.name, fmt::format("{} must be in {}{}, {}], found {:.24}", value.name,
                                               above_low ? '(' : '[', low, high,
                                               std::string_view(value.json.text)));
  target = *parsed;
  return {};
}

Refusal read_token_ids(const FieldValue& value,
                       std::int32_t vocabulary,
                       std::size_t count_max,
                       std::vector<Token>& target) {
  const bool packed = value.json.kind == Json::Kind::token_ids;
  if (!value.json.is_array() && !packed) return must_be(value, "an array of token ids");
  const std::size_t count = packed ? value.json.num_ids() : value.json.items.size();
  if (count > count_max)
    return wrong_field(value.name, fmt::format("{} may have at most {} entries, found {}",
                                               value.name, count_max, count));
  target.clear();
  target.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<std::int64_t> id =
        packed ? value.json.id_at(i) : whole_number(value.json.items[i]);
    if (!id || *id < 0 || *id >= vocabulary)
      return wrong_field(value.name, fmt::format("{}[{}] is not a token id; valid ids are 0..{}",
                                                 value.name, target.size(), vocabulary - 1));
    target.push_back(static_cast<Token>(*id));
  }
  return {};
}

Refusal read_texts(const FieldValue& value,
                   std::size_t count_max,
                   std::size_t bytes_max,
                   std::vector<std::string>& target) {
  target.clear();
  const auto add = [&](const Json& json) -> Refusal {
    if (!json.is_string()) return must_be(value, "a string or an array of strings");
    if (json.text.empty() || json.text.size() > bytes_max)
      return wrong_field(
          value.name, fmt::format("each string of {} must have 1..{} bytes, found {}", value.name,
                                  bytes_max, json.text.size()));
    target.push_back(json.text);
    return {};
  };
  if (!value.json.is_array()) return add(value.json);
  if (value.json.items.size() > count_max)
    return wrong_field(value.name, fmt::format("{} may have at most {} strings, found {}",
                                               value.name, count_max, value.json.items.size()));
  for (const Json& item : value.json.items)
    if (Refusal refused = add(item)) return refused;
  return {};
}

}  // namespace koho::api
