// SPDX-License-Identifier: Apache-2.0
// Builds the tree from the events of base/json.h: so numbers keep their digits, and the limits of
// depth, keys and duplicates apply before a value is stored.
#include "chat/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/printable.h"
#include "base/text.h"
#include "chat/decimal.h"
#include "chat/python_text.h"

namespace koho::chat {
namespace {

/// The code unit of the escape \uXXXX at `at`; nullopt if another text is there.
std::optional<std::uint32_t> escaped_unit(std::string_view text, std::size_t at) {
  if (text.substr(at, 2) != "\\u" || text.size() < at + 6) return {};
  std::uint32_t unit = 0;
  const char* end = text.data() + at + 6;
  const auto [stop, error] = std::from_chars(text.data() + at + 2, end, unit, 16);
  if (error != std::errc() || stop != end) return {};
  return unit;
}

/// Whether a string, as far as the parser read it before it failed, has an escaped surrogate that
/// is not half of a pair. The parser reports it as it reports bad syntax.
bool has_lone_surrogate(std::string_view token) {
  for (std::size_t at = token.find('\\'); at < token.size(); at = token.find('\\', at)) {
    const std::optional<std::uint32_t> unit = escaped_unit(token, at);
    at += unit ? 6U : 2U;
    if (!unit || *unit < 0xD800 || *unit > 0xDFFF) continue;
    if (*unit >= 0xDC00) return true;
    const std::optional<std::uint32_t> low = escaped_unit(token, at);
    if (!low && token.substr(at, 2) == "\\u") return false;  // what follows is no escape
    if (!low || *low < 0xDC00 || *low > 0xDFFF) return true;
    at += 6;
  }
  return false;
}

/// A number greater than any double, which the parser refuses: the count of numbers before it.
struct LargeNumber {
  std::size_t number = 0;
  std::string_view text{};
};

class TreeBuilder final : public json::Events {
 public:
  /// `large`: those that stand as 0.00 in the text.
  explicit TreeBuilder(const JsonShape& shape, const std::vector<LargeNumber>* large = nullptr)
      : shape_(shape), large_(large) {}

  Status null() override { return add(Json{}); }
  Status boolean(bool value) override {
    if (skips_) return add({});
    Json node;
    node.kind = Json::Kind::boolean;
    node.boolean = value;
    return add(std::move(node));
  }
  Status integer(std::int64_t value) override {
    ++numbers_;
    if (skips_) return add({});
    if (packs_ && pack(value)) return {};
    return add_number(fmt::format("{}", value));
  }
  Status large_integer(std::string_view digits) override {
    ++numbers_;
    if (skips_) return add({});
    if (digits.size() > kJsonDigitsMax && !shape_.exact_numbers)
      return fail(
          fmt::format("an integer of {} digits; the limit is {}", digits.size(), kJsonDigitsMax));
    return add_number(std::string(digits));
  }
  Status real(double value) override { return add_number(python_float(value)); }
  Status real_text(double value, std::string_view written) override {
    const bool is_next = large_ != nullptr && large_next_ < large_->size() &&
                         (*large_)[large_next_].number == numbers_;
    ++numbers_;
    if (is_next) {
      written = (*large_)[large_next_++].text;
      if (written.find_first_of(".eE") == std::string_view::npos) {
        --numbers_;
        return large_integer(written);
      }
    }
    if (skips_) return add({});
    std::string told = is_next ? std::string() : python_float(value);
    const bool keeps = is_next || (shape_.exact_numbers && decimal_of(told) != decimal_of(written));
    return add_number(keeps ? std::string(written) : std::move(told));
  }
  Status string(std::string value) override {
    if (skips_) return add({});
    Json node;
    node.kind = Json::Kind::string;
    node.text = std::move(value);
    return add(std::move(node));
  }
  Status begin_object() override {
    if (skips_) return open({});
    seen_keys_.emplace_back();
    return open(Json::object());
  }
  Status key(std::string name) override {
    if (skips_) return {};
    Json& object = *open_.back();
    if (object.keys.size() >= kJsonKeysMax)
      return fail(fmt::format("an object has more than {} keys", kJsonKeysMax));
    if (!seen_keys_.back().insert(name).second) {
      if (!shape_.last_of_duplicates)
        return fail(fmt::format("duplicate key \"{}\" in an object", shown(name)));
      const auto first = std::ranges::find(object.keys, name) - object.keys.begin();
      object.keys.erase(object.keys.begin() + first);
      object.items.erase(object.items.begin() + first);
    }
    if (open_.size() == 1) {
      skips_ = shape_.needs && !shape_.needs(name);
      packs_ = shape_.packs && shape_.packs(name);
    }
    object.keys.push_back(std::move(name));
    return {};
  }
  Status end_object() override {
    if (skips_) return close_skipped();
    seen_keys_.pop_back();
    open_.pop_back();
    return {};
  }
  Status begin_array() override {
    if (skips_) return open({});
    Json array;
    array.kind = Json::Kind::array;
    return open(std::move(array));
  }
  Status end_array() override {
    if (skips_) return close_skipped();
    open_.pop_back();
    return {};
  }
  Status malformed(std::size_t /*position*/,
                   std::string_view last_token,
                   std::string_view sentence) override {
    std::string what(sentence);
    met_large_ = sentence.starts_with("number overflow");
    // Remove the client's text from the message: it may be long or private, and errors go to logs.
    for (const std::string_view before : {"; last read: '", " parsing '"})
      if (const std::size_t at = what.find(before); at != std::string::npos)
        what.erase(at, before.size() + last_token.size() + 1);
    Error error = fail(what);
    if (!has_lone_surrogate(last_token)) return error;
    error.reason = ErrorReason::invalid_encoding;
    error.field = path();
    return error.field.empty() ? std::move(error) : std::move(error).with_context(error.field);
  }

  /// Whether a number was greater than any double.
  bool met_large() const { return met_large_; }

  Json root;

 private:
  static std::string shown(std::string_view key) { return printable(key, 40); }
  /// The path of the value that the parser is reading; while it reads a key, of the object.
  std::string path() const {
    std::string out;
    for (const Json* container : open_) {
      const bool innermost = container == open_.back();
      if (container->is_array()) {
        out += fmt::format("[{}]", container->items.size() - (innermost ? 0 : 1));
      } else if (container->kind == Json::Kind::token_ids) {
        out += fmt::format("[{}]", container->num_ids());
      } else if (!innermost || container->keys.size() > container->items.size()) {
        out += fmt::format("{}{}", out.empty() ? "" : ".", shown(container->keys.back()));
      }
    }
    return out;
  }
  static Error fail(std::string_view reason) {
    return make_error(ErrorCode::invalid_argument, "not valid JSON: {}", reason);
  }
  Status add_number(std::string digits) {
    Json node;
    node.kind = Json::Kind::number;
    node.text = std::move(digits);
    return add(std::move(node));
  }
  Status add(Json node) {
    if (skips_ && skipped_depth_ > 0) return {};
    skips_ = false;  // a skipped member is null, and over
    return place(std::move(node)) == nullptr ? too_many() : Status();
  }
  /// Null: the tree has as many values as it may.
  Json* place(Json node) {
    if (++values_ > shape_.values_max) return nullptr;
    if (open_.empty()) {
      root = std::move(node);
      return &root;
    }
    if (open_.back()->kind == Json::Kind::token_ids && !unpack(*open_.back())) return nullptr;
    // Only the innermost open container grows, so the pointers in open_ stay valid.
    return &open_.back()->items.emplace_back(std::move(node));
  }
  Status open(Json node) {
    if (open_.size() + skipped_depth_ >= shape_.depth_max)
      return fail(fmt::format("nested deeper than the limit of {}", shape_.depth_max));
    if (skips_) {
      ++skipped_depth_;
      return {};
    }
    open_.push_back(place(std::move(node)));
    return open_.back() == nullptr ? too_many() : Status();
  }
  Status close_skipped() { return --skipped_depth_ == 0 ? add({}) : Status(); }
  Error too_many() const {
    Error error = make_error(ErrorCode::invalid_argument,
                             "more than {} values (texts, numbers, arrays, objects), which is the "
                             "limit",
                             shape_.values_max);
    error.reason = ErrorReason::too_long;
    return error;
  }
  /// Appends `value` to the innermost array if that can be packed: it is the member itself or an
  /// array in it, and holds nothing but integers from 0.
  bool pack(std::int64_t value) {
    Json& array = *open_.back();
    const bool packed = array.kind == Json::Kind::token_ids;
    if (!(packed || (array.is_array() && array.items.empty()))) return false;
    if (open_.size() < 2 || open_.size() > 3 || value < 0 ||
        value > std::numeric_limits<std::int32_t>::max())
      return false;
    array.kind = Json::Kind::token_ids;
    const auto id = static_cast<std::int32_t>(value);
    std::array<char, sizeof id> bytes{};
    std::memcpy(bytes.data(), &id, sizeof id);
    array.text.append(bytes.data(), bytes.size());
    return true;
  }
  /// Makes nodes of token_ids, behind which something else comes. False: too many values.
  bool unpack(Json& array) {
    if ((values_ += array.num_ids()) > shape_.values_max) return false;
    for (std::size_t i = 0; i < array.num_ids(); ++i) {
      Json number;
      number.kind = Json::Kind::number;
      number.text = fmt::format("{}", array.id_at(i));
      array.items.push_back(std::move(number));
    }
    array.text.clear();
    array.text.shrink_to_fit();
    array.kind = Json::Kind::array;
    return true;
  }

  const JsonShape& shape_;
  const std::vector<LargeNumber>* const large_;
  std::size_t large_next_ = 0;
  std::size_t numbers_ = 0;
  bool met_large_ = false;
  std::size_t values_ = 0;
  bool skips_ = false;             // the value of a member that nobody needs is read …
  std::size_t skipped_depth_ = 0;  // … so deep below that member
  bool packs_ = false;             // arrays of integers become token_ids
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
    case Json::Kind::token_ids:
      for (std::size_t i = 0; i < value.num_ids(); ++i)
        out += fmt::format("{}{}", i == 0 ? "[" : ", ", value.id_at(i));
      out += ']';
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

/// All of `text` as a double; nullopt if it is not a number, or greater than any.
std::optional<double> parse_double(std::string_view text) {
  double parsed = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (stop == end && error == std::errc::result_out_of_range && decimal_of(text).exponent <= 0)
    return text.starts_with('-') ? -0.0 : 0.0;
  if (error != std::errc() || stop != end) return {};
  return parsed;
}

/// How long the JSON number is that `text` begins with; 0: it begins with none.
std::size_t number_length(std::string_view text) {
  const auto digits_end = [&](std::size_t from) {
    return std::min(text.find_first_not_of("0123456789", from), text.size());
  };
  const std::size_t begin = text.starts_with('-') ? 1 : 0;
  std::size_t end = digits_end(begin);
  if (end == begin || (text[begin] == '0' && end > begin + 1)) return 0;
  if (end < text.size() && text[end] == '.') {
    const std::size_t fraction_end = digits_end(end + 1);
    if (fraction_end == end + 1) return 0;
    end = fraction_end;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const bool has_sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-');
    const std::size_t power = end + (has_sign ? 2 : 1);
    end = digits_end(power);
    if (end == power) return 0;
  }
  return end;
}

/// The numbers of a JSON text that are greater than any double; `out`, the same text, has zeros of
/// their length in their places.
std::vector<LargeNumber> take_large_numbers(std::string_view text, std::string& out) {
  constexpr std::size_t kLargeMax = 100'000;  // some megabytes
  std::vector<LargeNumber> large;
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < text.size() && large.size() < kLargeMax; ++i) {
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i)
        if (text[i] == '\\') ++i;
    } else if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
      const std::string_view number = text.substr(i, number_length(text.substr(i)));
      if (number.empty()) break;  // no JSON
      if (!parse_double(number)) {
        large.push_back({.number = numbers, .text = number});
        out.replace(i, number.size(), "0." + std::string(number.size() - 2, '0'));
      }
      ++numbers;
      i += number.size() - 1;
    }
  }
  return large;
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

std::int32_t Json::id_at(std::size_t index) const {
  std::int32_t id = 0;
  std::memcpy(&id, text.data() + index * sizeof id, sizeof id);
  return id;
}

bool Json::is_integer() const {
  return is_number() && text.find_first_of(".eE") == std::string::npos;
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
    case Json::Kind::token_ids:
      return "an array";
    case Json::Kind::object:
      return "an object";
  }
  return "a value";
}

Error wrong_kind(std::string_view field, std::string_view expected, const Json* found) {
  return make_field_error(ErrorCode::invalid_argument, field, "{}: expected {}, found {}", expected,
                          found == nullptr ? "nothing" : kind_name(found->kind));
}

Result<Json> parse_json(std::string_view text, std::size_t depth_max) {
  return parse_json(text, {.depth_max = depth_max});
}

std::size_t count_values(const Json& value) {  // depth is at most kJsonDepthMax
  std::size_t count = 1;
  for (const Json& item : value.items) count += count_values(item);
  return count;
}

Result<Json> parse_json(std::string_view text, const JsonShape& shape) {
  // The parser treats a zero byte as the end of input and would ignore the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return make_error(ErrorCode::invalid_argument, "not valid JSON: a zero byte at byte {}", zero);
  TreeBuilder builder(shape);
  const Status parsed = json::parse_bounded_text(text, builder);
  if (parsed.ok()) return std::move(builder.root);
  if (!builder.met_large()) return parsed.error();
  std::string smaller(text);
  const std::vector<LargeNumber> large = take_large_numbers(text, smaller);
  TreeBuilder again(shape, &large);
  KOHO_TRY(json::parse_bounded_text(smaller, again));
  return std::move(again.root);
}

std::string dump_json(const Json& value) {
  std::string out;
  append_value(out, value);
  return out;
}

}  // namespace koho::chat
