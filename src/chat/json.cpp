// SPDX-License-Identifier: Apache-2.0
// Builds the tree from nlohmann's SAX events instead of its DOM: so numbers keep their digits, and
// the limits of depth, keys and duplicates apply before a value is stored.
#include "chat/json.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/text.h"
#include "chat/python_text.h"

namespace koho::chat {
namespace {

/// Receives nlohmann's events. Returning false stops the parser; `error` then holds the reason.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::size_t depth_max) : depth_max_(depth_max) {}

  // The names and signatures are nlohmann::json_sax's.
  bool null() { return add(Json{}); }
  bool boolean(bool value) {
    Json node;
    node.kind = Json::Kind::boolean;
    node.boolean = value;
    return add(std::move(node));
  }
  bool number_integer(nlohmann::json::number_integer_t value) {
    return add_number(fmt::format("{}", value));
  }
  bool number_unsigned(nlohmann::json::number_unsigned_t value) {
    return add_number(fmt::format("{}", value));
  }
  bool number_float(nlohmann::json::number_float_t value, const std::string& digits) {
    if (digits.find_first_of(".eE") != std::string::npos) return add_number(python_float(value));
    if (digits.size() > kJsonDigitsMax)
      return fail(
          fmt::format("an integer of {} digits; the limit is {}", digits.size(), kJsonDigitsMax));
    return add_number(digits);  // an integer beyond 64 bits
  }
  bool string(std::string& value) { return add(Json::string(value)); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return fail("binary values are not JSON"); }
  bool start_object(std::size_t /*elements*/) {
    seen_keys_.emplace_back();
    return open(Json::object());
  }
  bool key(std::string& name) {
    Json& object = *open_.back();
    if (object.keys.size() >= kJsonKeysMax)
      return fail(fmt::format("an object has more than {} keys", kJsonKeysMax));
    if (!seen_keys_.back().insert(name).second)
      return fail(fmt::format("duplicate key \"{}\" in an object", shown(name)));
    object.keys.push_back(name);
    return true;
  }
  bool end_object() {
    seen_keys_.pop_back();
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t /*elements*/) {
    Json array;
    array.kind = Json::Kind::array;
    return open(std::move(array));
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t /*position*/,
                   const std::string& token,
                   const nlohmann::json::exception& exception) {
    std::string what = exception.what();  // "[json.exception.parse_error.101] parse error at…"
    if (const std::size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    // Remove the client's text from the message: it may be long or private, and errors go to logs.
    for (const std::string_view before : {"; last read: '", " parsing '"})
      if (const std::size_t at = what.find(before); at != std::string::npos)
        what.erase(at, before.size() + token.size() + 1);
    if (what.find("surrogate") != std::string::npos) field = path();
    return fail(what);
  }

  Json root;
  std::string error;
  std::string field;  // of a lone surrogate: "messages[0].content"

 private:
  static std::string shown(std::string_view key) { return printable(key, 40); }
  /// The path of the value that the parser is reading; while it reads a key, of the object.
  std::string path() const {
    std::string out;
    for (const Json* container : open_) {
      const bool innermost = container == open_.back();
      if (container->is_array()) {
        out += fmt::format("[{}]", container->items.size() - (innermost ? 0 : 1));
      } else if (!innermost || container->keys.size() > container->items.size()) {
        out += fmt::format("{}{}", out.empty() ? "" : ".", shown(container->keys.back()));
      }
    }
    return out;
  }
  bool fail(std::string_view reason) {
    error = reason;
    return false;
  }
  bool add_number(std::string digits) {
    Json node;
    node.kind = Json::Kind::number;
    node.text = std::move(digits);
    return add(std::move(node));
  }
  bool add(Json node) {
    place(std::move(node));
    return true;
  }
  Json* place(Json node) {
    if (open_.empty()) {
      root = std::move(node);
      return &root;
    }
    // Only the innermost open container grows, so the pointers in open_ stay valid.
    return &open_.back()->items.emplace_back(std::move(node));
  }
  bool open(Json node) {
    if (open_.size() >= depth_max_)
      return fail(fmt::format("nested deeper than the limit of {}", depth_max_));
    open_.push_back(place(std::move(node)));
    return true;
  }

  std::size_t depth_max_;
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> seen_keys_;  // one set per open object
};

void append_value(std::string& out, const Json& value) {  // depth is at most kJsonDepthMax
  switch (value.kind) {
    case Json::Kind::null:
      out += "null";
      return;
    case Json::Kind::boolean:
      out += value.boolean ? "true" : "false";
      return;
    case Json::Kind::number:
      out += value.text;
      return;
    case Json::Kind::string:
      append_json_string(out, value.text);
      return;
    case Json::Kind::array:
    case Json::Kind::object:
      break;
  }
  out += value.is_object() ? '{' : '[';
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (value.is_object()) {
      append_json_string(out, value.keys[i]);
      out += ": ";
    }
    append_value(out, value.items[i]);
  }
  out += value.is_object() ? '}' : ']';
}

/// All of `text` as a double; nullopt if it is not a number, or out of range.
std::optional<double> parse_double(std::string_view text) {
  double parsed = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || stop != end) return {};
  return parsed;
}

}  // namespace

Json Json::string(std::string_view value) {
  Json node;
  node.kind = Kind::string;
  node.text = value;
  return node;
}

Json Json::object() {
  Json node;
  node.kind = Kind::object;
  return node;
}

bool Json::is_integer() const {
  return is_number() && text.find_first_of(".e") == std::string::npos;
}

std::optional<std::int64_t> Json::as_integer() const {
  return is_integer() ? parse_integer<std::int64_t>(text) : std::nullopt;
}

std::optional<double> Json::as_number() const {
  return is_number() ? parse_double(text) : std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
}

const Json* Json::given(std::string_view key) const {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void Json::set(std::string_view key, Json value) {
  KOHO_CHECK(is_object());
  const auto found = std::find(keys.begin(), keys.end(), key);
  if (found != keys.end()) {
    items[static_cast<std::size_t>(found - keys.begin())] = std::move(value);
    return;
  }
  keys.emplace_back(key);
  items.push_back(std::move(value));
}

std::string_view kind_name(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::null:
      return "null";
    case Json::Kind::boolean:
      return "a boolean";
    case Json::Kind::number:
      return "a number";
    case Json::Kind::string:
      return "a string";
    case Json::Kind::array:
      return "an array";
    case Json::Kind::object:
      return "an object";
  }
  return "a value";
}

Error wrong_kind(std::string_view field, std::string_view expected, const Json* found) {
  return make_error(ErrorCode::invalid_argument, "{}: expected {}, found {}", field, expected,
                    found == nullptr ? "nothing" : kind_name(found->kind));
}

Result<Json> parse_json(std::string_view text, std::size_t depth_max) {
  // nlohmann's lexer treats a zero byte as the end of input and would ignore the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return make_error(ErrorCode::invalid_argument, "not valid JSON: a zero byte at byte {}", zero);
  TreeBuilder builder(depth_max);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    Error error = make_error(ErrorCode::invalid_argument, "not valid JSON: {}", builder.error);
    return builder.field.empty() ? error : std::move(error).with_context(builder.field);
  }
  return std::move(builder.root);
}

std::string dump_json(const Json& value) {
  std::string out;
  append_value(out, value);
  return out;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
        } else {
          out += c;
        }
    }
  }
}

}  // namespace koho::chat
