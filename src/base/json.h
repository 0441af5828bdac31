// SPDX-License-Identifier: Apache-2.0
// Reading JSON: the one adapter of nlohmann's event parser, and a small tree. Files that nobody
// vouches for are read strictly: one complete RFC 8259 text in UTF-8, bounded in depth and in the
// length of a string. The tree refuses duplicate keys and integers beyond 64 bits. Refused
// everywhere: comments and anything after the value. Requests have a tree of their own,
// chat/json.h, which keeps numbers as Python prints them; docs/decisions/0010-json.md says why.
// Writing: base/json_writer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace koho::json {

struct Limits {
  int depth_max = 64;                        // arrays and objects inside each other
  std::size_t string_bytes_max = 1U << 20U;  // of one string, as written
};

/// Receives the events of a parse in document order. The first error returned stops the parse and
/// is passed on.
class Events {
 public:
  virtual ~Events() = default;
  virtual Status null() = 0;
  virtual Status boolean(bool value) = 0;
  virtual Status integer(std::int64_t value) = 0;  // written without fraction and exponent
  /// An integer that 64 bits do not hold, as written. Refused, unless a reader keeps digits.
  virtual Status large_integer(std::string_view digits);
  virtual Status real(double value) = 0;  // written with fraction or exponent; finite
  /// The same, for readers that want its text.
  virtual Status real_text(double value, std::string_view /*written*/) { return real(value); }
  virtual Status string(std::string value) = 0;
  virtual Status begin_object() = 0;
  virtual Status key(std::string name) = 0;
  virtual Status end_object() = 0;
  virtual Status begin_array() = 0;
  virtual Status end_array() = 0;
  /// The text is no JSON. Makes the error of the parser's sentence; `last_token` stands in it.
  virtual Status malformed(std::size_t position,
                           std::string_view last_token,
                           std::string_view sentence);
};

/// Reads `text`. Errors: corrupt_data (not JSON, not UTF-8, over a limit), or what `events`
/// returned.
Status parse_events(std::string_view text, const Limits& limits, Events& events);

/// The same for a text whose size is bounded already, such as a request's body: `events` itself
/// limits depth and the length of tokens, and a byte order mark is skipped. Requires: no zero byte,
/// which would end the text.
Status parse_bounded_text(std::string_view text, Events& events);

enum class Kind : std::uint8_t { null, boolean, integer, real, string, array, object };

/// "a boolean", "an integer", …: for messages.
std::string_view kind_name(Kind kind);

struct Member;

/// One value of the tree. Members of an object keep their order.
class Value {
 public:
  using Array = std::vector<Value>;
  using Object = std::vector<Member>;

  Value() = default;
  // Not copied: in libstdc++ 12 a copy of such a variant that runs out of memory ends in undefined
  // behaviour.
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  Value(Value&&) noexcept = default;
  Value& operator=(Value&&) noexcept = default;
  ~Value() = default;
  template <typename T>
  explicit Value(T value) : value_(std::move(value)) {}

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::null; }
  std::optional<bool> boolean() const;
  /// Written as an integer: 1.0 is a real.
  std::optional<std::int64_t> integer() const;
  /// An integer or a real.
  std::optional<double> number() const;
  /// nullptr when the value is of another kind.
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  Array* array() { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  Object* object() { return std::get_if<Object>(&value_); }
  /// The member of an object, or nullptr.
  const Value* find(std::string_view name) const;

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

struct Member {
  std::string name;
  Value value;
};

/// Builds the tree from events: a stack of open containers, each with the key its next value
/// belongs to. For readers that take a part of a file as events and the rest as a tree.
class TreeEvents : public Events {
 public:
  Status null() override { return put(Value()); }
  Status boolean(bool value) override { return put(Value(value)); }
  Status integer(std::int64_t value) override { return put(Value(value)); }
  Status real(double value) override { return put(Value(value)); }
  Status string(std::string value) override { return put(Value(std::move(value))); }
  Status begin_object() override;
  Status key(std::string name) override;
  Status end_object() override;
  Status begin_array() override;
  Status end_array() override { return close(); }

  /// The root, after its last event.
  Value take() { return std::move(root_); }

 private:
  struct Open {
    Value value;
    std::string key;
  };
  Status put(Value value);
  Status close();

  std::vector<Open> open_;
  Value root_;
};

/// Reads `text` into a tree. Meant for small files: the tree takes up to 40 times the text's bytes.
/// Errors: corrupt_data, as above and for a key that appears twice in one object.
Result<Value> parse(std::string_view text, const Limits& limits = {});

}  // namespace koho::json
