// SPDX-License-Identifier: Apache-2.0
// JSON for requests and chat prompts. Keeps the order of keys, and each number as Python prints it;
// strings are UTF-8. Parses within limits (depth, keys per object, no duplicate keys) and writes
// exactly as Python's json.dumps(value, ensure_ascii=False), because the chat templates do. Refuses
// NaN, Infinity, lone surrogates and invalid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho::chat {

/// A JSON value with everything below it.
struct Json {
  /// token_ids: an array of integers from 0, packed (JsonShape::packs); the others are JSON's.
  enum class Kind : std::uint8_t { null, boolean, number, string, array, object, token_ids };

  Kind kind = Kind::null;
  bool boolean = false;
  std::string text;               // string: its value; number: its text; token_ids: they
  std::vector<std::string> keys;  // object: keys[i] names items[i], in the order received
  std::vector<Json> items;        // array: its items; object: its values

  static Json string(std::string_view value);
  static Json object();

  bool is_null() const { return kind == Kind::null; }
  bool is_string() const { return kind == Kind::string; }
  bool is_array() const { return kind == Kind::array; }
  bool is_object() const { return kind == Kind::object; }
  bool is_number() const { return kind == Kind::number; }
  /// Whether this is a number that Python reads as an int: without a point and an exponent.
  bool is_integer() const;
  /// The number of token_ids, and the one at `index`.
  std::size_t num_ids() const { return text.size() / sizeof(std::int32_t); }
  std::int32_t id_at(std::size_t index) const;
  /// The value of an integer; nullopt if this is not an integer, or beyond 64 bits.
  std::optional<std::int64_t> as_integer() const;
  /// The nearest double of a number; nullopt if this is not a number, or greater than any double.
  std::optional<double> as_number() const;

  /// The value of `key`; nullptr if there is none, or this is not an object.
  const Json* find(std::string_view key) const;
  /// The same, but nullptr also if the value is null.
  const Json* given(std::string_view key) const;
  /// Sets the value of `key`; a new key goes to the end. Requires: is_object().
  void set(std::string_view key, Json value);

  friend bool operator==(const Json&, const Json&) = default;
};

/// The kind in words, for messages: "a string", "an object", ...
std::string_view kind_name(Json::Kind kind);

/// The error invalid_argument "FIELD: expected a string, found a number". `found` is nullptr if the
/// field is missing ("found nothing").
Error wrong_kind(std::string_view field, std::string_view expected, const Json* found);

inline constexpr std::size_t kJsonDepthMax = 64;
inline constexpr std::size_t kJsonKeysMax = 1024;    // in one object
inline constexpr std::size_t kJsonDigitsMax = 4300;  // of an integer; Python has the same limit

/// What parse_json() makes of a text: bounds for one that a client sends.
struct JsonShape {
  std::size_t depth_max = kJsonDepthMax;
  std::size_t values_max = ~std::size_t{0};  // of the tree; a skipped or packed value is none
  /// Whether a member of the root is needed. The value of any other is read, and null in the tree.
  std::function<bool(std::string_view name)> needs{};
  /// Whether arrays of integers in that member of the root, or in an array there, become token_ids.
  std::function<bool(std::string_view name)> packs{};
  /// A number that Python would change keeps its text; an integer may have any number of digits.
  bool exact_numbers = false;
  /// Of a key that an object has twice, the last value counts, as in Python; else it is an error.
  bool last_of_duplicates = false;
};

/// Parses exactly one JSON value. Stores each number as Python prints it: an integer digit for
/// digit, any other number as repr(float) ("1.0", "1e-05", "1e+16"), but one that is greater than
/// any double (inf in Python) as it is written. Errors: invalid_argument with
/// the place and the reason, never with the text itself, which may be private. For a lone surrogate
/// the message starts with its field, which Error::field holds too. Reason too_long: more than
/// values_max values. Memory: the tree takes up to 300 bytes a value, while it grows.
Result<Json> parse_json(std::string_view text, const JsonShape& shape);
Result<Json> parse_json(std::string_view text, std::size_t depth_max = kJsonDepthMax);

/// The number of values below `value`, itself included.
std::size_t count_values(const Json& value);

/// json.dumps(value, ensure_ascii=False): separators ", " and ": ", keys in their order.
std::string dump_json(const Json& value);

}  // namespace koho::chat
