// SPDX-License-Identifier: Apache-2.0
// The one place that calls nlohmann's parser: its events become ours, and the tree is built from
// them.
#include "base/json.h"

#include <algorithm>
#include <climits>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace koho::json {
namespace {

using Library = nlohmann::json;

constexpr std::size_t kNumberBytesMax = 512;  // far more than any 64-bit number needs

bool in_number(char c) {
  return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E';
}

/// Checks the length of every string and number before the library buffers them. Also refuses what
/// the library would pass over: a byte order mark, and a zero byte, which it takes for the end.
Status check_token_sizes(std::string_view text, const Limits& limits) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF")
    return make_error(ErrorCode::corrupt_data, "not valid JSON: starts with a byte order mark");
  bool inside = false;    // a string
  std::size_t begin = 0;  // of the current string, or of the current number
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i - begin > (inside ? limits.string_bytes_max : kNumberBytesMax))
      return make_error(ErrorCode::corrupt_data, ErrorReason::too_long,
                        "not acceptable JSON: the {} at byte {} is longer than {} bytes",
                        inside ? "string" : "number", begin,
                        inside ? limits.string_bytes_max : kNumberBytesMax);
    if (c == '\0')
      return make_error(ErrorCode::corrupt_data, "not valid JSON: a zero byte at byte {}", i);
    if (c == '"') {
      inside = !inside;
      begin = i + 1;
    } else if (inside) {
      if (c == '\\') ++i;
    } else if (!in_number(c)) {
      begin = i + 1;
    }
  }
  return {};
}

/// Forwards the library's callbacks. Each returns whether the parser shall go on.
class Adapter : public nlohmann::json_sax<Library> {
 public:
  Adapter(int depth_max, Events& events) : depth_max_(depth_max), events_(events) {}

  bool null() override { return go_on(events_.null()); }
  bool boolean(bool value) override { return go_on(events_.boolean(value)); }
  bool number_integer(number_integer_t value) override { return go_on(events_.integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX))
      return go_on(events_.large_integer(std::to_string(value)));
    return go_on(events_.integer(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& written) override {
    if (written.find_first_of(".eE") == string_t::npos)
      return go_on(events_.large_integer(written));
    return go_on(events_.real_text(value, written));
  }
  bool string(string_t& value) override { return go_on(events_.string(std::move(value))); }
  bool binary(binary_t&) override {
    return go_on(make_error(ErrorCode::internal, "binary value in JSON text"));
  }
  bool start_object(std::size_t) override { return deeper() && go_on(events_.begin_object()); }
  bool key(string_t& name) override { return go_on(events_.key(std::move(name))); }
  bool end_object() override {
    --depth_;
    return go_on(events_.end_object());
  }
  bool start_array(std::size_t) override { return deeper() && go_on(events_.begin_array()); }
  bool end_array() override {
    --depth_;
    return go_on(events_.end_array());
  }
  bool parse_error(std::size_t position,
                   const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    std::string_view sentence =
        error.what();  // "[json.exception.parse_error.101] parse error at …: reason"
    if (const std::size_t tag = sentence.find("] "); tag != std::string_view::npos)
      sentence.remove_prefix(tag + 2);
    status_ = events_.malformed(position, last_token, sentence);
    return false;
  }

  Status take_status() { return std::move(status_); }

 private:
  bool go_on(Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }
  bool deeper() {
    return ++depth_ <= depth_max_ ||
           go_on(make_error(ErrorCode::corrupt_data, ErrorReason::too_deep,
                            "not acceptable JSON: nested deeper than {} levels", depth_max_));
  }

  int depth_max_;
  Events& events_;
  int depth_ = 0;
  Status status_;
};

Status parse(std::string_view text, int depth_max, Events& events) {
  Adapter adapter(depth_max, events);
  if (Library::sax_parse(text.begin(), text.end(), &adapter)) return {};
  return adapter.take_status();
}

}  // namespace

Status Events::large_integer(std::string_view digits) {
  return make_error(ErrorCode::corrupt_data, ErrorReason::beyond_64_bits,
                    "not acceptable JSON: the integer {} does not fit 64 bits",
                    printable(digits, 40));
}

Status Events::malformed(std::size_t position, std::string_view, std::string_view sentence) {
  if (const std::size_t colon = sentence.find(": "); colon != std::string_view::npos)
    sentence.remove_prefix(colon + 2);  // "parse error at line 1, column 5: "
  return make_error(ErrorCode::corrupt_data, "not valid JSON at byte {}: {}", position,
                    printable(sentence));
}

Status parse_events(std::string_view text, const Limits& limits, Events& events) {
  KOHO_TRY(check_token_sizes(text, limits));
  return parse(text, limits.depth_max, events);
}

Status parse_bounded_text(std::string_view text, Events& events) {
  return parse(text, INT_MAX, events);
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return "a boolean";
    case Kind::integer:
      return "an integer";
    case Kind::real:
      return "a number with a fraction";
    case Kind::string:
      return "a string";
    case Kind::array:
      return "an array";
    case Kind::object:
      return "an object";
  }
  return "?";
}

std::optional<bool> Value::boolean() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  return std::nullopt;
}

std::optional<std::int64_t> Value::integer() const {
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_)) return *value;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const std::int64_t* value = std::get_if<std::int64_t>(&value_))
    return static_cast<double>(*value);
  return std::nullopt;
}

const Value* Value::find(std::string_view name) const {
  if (const Object* members = object())
    for (const Member& member : *members)
      if (member.name == name) return &member.value;
  return nullptr;
}

Status TreeEvents::put(Value value) {
  if (open_.empty()) {
    root_ = std::move(value);
  } else if (Value::Object* object = open_.back().value.object()) {
    object->push_back({std::move(open_.back().key), std::move(value)});
  } else {
    open_.back().value.array()->push_back(std::move(value));
  }
  return {};
}

Status TreeEvents::close() {
  Value value = std::move(open_.back().value);
  open_.pop_back();
  return put(std::move(value));
}

Status TreeEvents::begin_object() {
  open_.push_back({Value(Value::Object()), {}});
  return {};
}

Status TreeEvents::begin_array() {
  open_.push_back({Value(Value::Array()), {}});
  return {};
}

Status TreeEvents::key(std::string name) {
  open_.back().key = std::move(name);
  return {};
}

Status TreeEvents::end_object() {
  std::vector<std::string_view> names;
  for (const Member& member : *open_.back().value.object()) names.push_back(member.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    return make_error(ErrorCode::corrupt_data, "not acceptable JSON: the key '{}' appears twice",
                      printable(*twice));
  return close();
}

Result<Value> parse(std::string_view text, const Limits& limits) {
  TreeEvents builder;
  KOHO_TRY(parse_events(text, limits, builder));
  return builder.take();
}

}  // namespace koho::json
