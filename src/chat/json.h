// SPDX-License-Identifier: Apache-2.0
// JSON as a chat prompt needs it: key order kept, numbers kept as Python would print them, strings
// in UTF-8. Reads with limits (depth, keys an object, no duplicate keys) and writes exactly as
// Python's json.dumps(value, ensure_ascii=False) does. Refuses NaN, Infinity, lone surrogates and
// invalid UTF-8, which JSON does not have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho::chat {

/// One JSON value, a plain tree.
struct Json {
  enum class Kind : std::uint8_t { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  bool boolean = false;
  std::string text;  // of a string: its value; of a number: its digits (see is_integer)
  std::vector<std::string> keys;  // of an object: keys[i] names items[i], in the order received
  std::vector<Json> items;        // of an array or object

  static Json string(std::string_view value);
  static Json object();

  bool is_null() const { return kind == Kind::null; }
  bool is_string() const { return kind == Kind::string; }
  bool is_array() const { return kind == Kind::array; }
  bool is_object() const { return kind == Kind::object; }
  bool is_number() const { return kind == Kind::number; }
  /// A number that Python reads as an int: no point and no exponent in its digits.
  bool is_integer() const;
  /// The value of an integer; nothing beyond 64 bits, or if this is none.
  std::optional<std::int64_t> as_integer() const;
  /// The value of a number, the nearest double; nothing beyond its range, or if this is none.
  std::optional<double> as_number() const;

  /// The value of `key`, or nullptr: also when this is not an object.
  const Json* find(std::string_view key) const;
  /// The same, but nullptr for null, too.
  const Json* given(std::string_view key) const;
  /// Puts `value` at `key`, at the end when the key is new. Requires: an object.
  void set(std::string_view key, Json value);

  friend bool operator==(const Json&, const Json&) = default;
};

/// What a reader calls the kind: "a string", "an object", ...
std::string_view kind_name(Json::Kind kind);

/// "messages.2.content: expected a string, found a number"; `found` is null for nothing.
/// invalid_argument.
Error wrong_kind(std::string_view field, std::string_view expected, const Json* found);

inline constexpr std::size_t kJsonDepthMax = 64;
inline constexpr std::size_t kJsonKeysMax = 1024;    // in one object
inline constexpr std::size_t kJsonDigitsMax = 4300;  // of an integer; Python's own limit

/// Parses exactly one JSON value. A number's text becomes what Python prints for it: integers of
/// any length digit for digit, others as repr(float) ("1.0", "1e-05", "1e+16"). Errors:
/// invalid_argument, with the place and the reason, not the text; a lone surrogate's field first.
Result<Json> parse_json(std::string_view text, std::size_t depth_max = kJsonDepthMax);

/// json.dumps(value, ensure_ascii=False): separators ", " and ": ", key order kept.
std::string dump_json(const Json& value);

}  // namespace koho::chat
