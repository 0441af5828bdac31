// SPDX-License-Identifier: Apache-2.0
// Reads the members of one JSON object of a model's file by name, without defaults. It checks every
// value's kind and range; errors name file, key, expected and found. Afterwards it tells which keys
// nobody read.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace koho {

/// "the string 'abc'", "12", "an object": for messages.
std::string describe_value(const json::Value& value);

/// Borrows the object. Errors of all readers: invalid_argument.
class JsonFields {
 public:
  /// `place` stands before every message: "config.json" or "config.json: rope_parameters".
  /// Requires: `object` is an object.
  JsonFields(std::string place, const json::Value& object);

  /// The member if it is there and not null, else nullptr. Counts as read.
  const json::Value* find(const char* key);
  /// The member, which must be there (null is there).
  Result<const json::Value*> need(const char* key);

  Result<std::int64_t> integer(const char* key, std::int64_t least, std::int64_t most);
  /// Written with or without a fraction; least < value <= most.
  Result<double> number_above(const char* key, double least, double most);
  Result<bool> boolean(const char* key);
  Result<std::string> text(const char* key);

  /// An error about a member: "config.json: 'hidden_act' is the string 'gelu'; expected 'silu'".
  Error wrong(const char* key, const json::Value& found, std::string_view expected) const;

  const std::string& place() const { return place_; }
  /// Keys that no reader asked for, in the object's order.
  std::vector<std::string> unread() const;

 private:
  std::string place_;
  const json::Value& object_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace koho
