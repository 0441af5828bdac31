// SPDX-License-Identifier: Apache-2.0
#include "grammar/string_lengths.h"

#include <cctype>

#include "base/json.h"
#include "base/text.h"

namespace koho {
namespace {

/// The end of the character class that `pattern` starts with (".", "\w", "[a-z]"), or npos.
std::size_t class_end(std::string_view pattern) {
  if (pattern.empty()) return pattern.npos;
  if (pattern[0] == '.') return 1;
  if (pattern[0] == '\\') {
    constexpr std::string_view kClasses = "wWdDsS";
    const bool known = pattern.size() > 1 && kClasses.find(pattern[1]) != kClasses.npos;
    return known ? 2 : pattern.npos;
  }
  if (pattern[0] != '[') return pattern.npos;
  for (std::size_t i = 1; i < pattern.size(); ++i) {
    if (pattern[i] == '[')
      return pattern.npos;  // regular expression engines read "[" within a class differently
    if (pattern[i] == '\\')
      ++i;
    else if (pattern[i] == ']')
      return i > 1 && !(i == 2 && pattern[1] == '^') ? i + 1 : pattern.npos;
  }
  return pattern.npos;
}

/// Whether a class for sure has a character that JSON writes without an escape: "[^\s\S]" has none,
/// "[\n]" one that a counted string cannot have.
bool has_character(std::string_view one_class) {
  const bool negated = one_class.starts_with("[^");
  if (one_class[0] != '[' || one_class == kAnyOfALine) return true;
  one_class = one_class.substr(negated ? 2 : 1, one_class.size() - (negated ? 3 : 2));
  bool has_plain = false;
  for (std::size_t i = 0; i < one_class.size(); ++i) {
    const bool escape = one_class[i] == '\\' && i + 1 < one_class.size();
    const char c = one_class[escape ? ++i : i];
    const bool named = escape && std::isalnum(static_cast<unsigned char>(c)) != 0;
    constexpr std::string_view kNamed = "wdsnrtfvWDS";
    const bool upper = c == 'W' || c == 'D' || c == 'S';
    if (named && (kNamed.find(c) == kNamed.npos || (negated && upper))) return false;
    if (negated && static_cast<unsigned char>(c) >= 0x80) return false;  // it may be a range's end
    has_plain = has_plain ||
                (named ? upper || c == 'w' || c == 'd' || c == 's'
                       : c >= ' ' && c < '\x7f' && c != '"' && c != '\\' && (escape || c != '-'));
  }
  return negated || has_plain;
}

/// The end of the one character, or the class of characters, at `at`, or npos.
std::size_t character_end(std::string_view pattern, std::size_t at) {
  const std::string_view rest = pattern.substr(at);
  if (rest.empty()) return pattern.npos;
  constexpr std::string_view kSyntax = "^$.|?*+()[]{}";
  if (kSyntax.find(rest[0]) == kSyntax.npos && rest[0] != '\\' && rest[0] != '"')
    return static_cast<unsigned char>(rest[0]) < 0x80 ? at + 1 : pattern.npos;
  if (rest[0] == '\\' && rest.size() > 1 &&
      (kSyntax.find(rest[1]) != kSyntax.npos || rest[1] == '-' || rest[1] == '/'))
    return at + 2;
  const std::size_t end = class_end(rest);
  return end == rest.npos ? pattern.npos : at + end;
}

std::optional<std::int32_t> number(std::string_view text) {
  const auto value = parse_integer<std::int32_t>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

}  // namespace

std::optional<CountedPattern> counted_pattern(std::string_view pattern) {
  const bool begins = pattern.starts_with('^');
  const bool ends = pattern.ends_with('$');
  std::string_view core = pattern;
  if (begins) core.remove_prefix(1);
  if (ends) core.remove_suffix(1);
  // "^([a-z]{1,64})?$"
  const bool optional = core.ends_with(")?");
  if (core.starts_with('(') && (optional || core.ends_with(')'))) {
    core.remove_prefix(core.starts_with("(?:") ? 3 : 1);
    core.remove_suffix(optional ? 2 : 1);
  }
  // Characters before the class: "^[a-z][a-z0-9]{0,63}$" has 1 to 64.
  std::size_t head = 0;
  std::int32_t before = 0;
  std::size_t end = character_end(core, head);
  while (end != core.npos && end < core.size() && core[end] != '{') {
    head = end;
    ++before;
    end = character_end(core, head);
  }
  if (end == core.npos || core.size() < end + 3 || core.back() != '}') return std::nullopt;
  if (!has_character(core.substr(head, end - head))) return std::nullopt;
  const std::string_view range = core.substr(end + 1, core.size() - end - 2);
  const std::size_t comma = range.find(',');
  const std::optional<std::int32_t> least = number(range.substr(0, comma));
  if (!least) return std::nullopt;
  LengthBounds bounds{*least, *least};
  if (comma != range.npos) {
    const std::string_view high = range.substr(comma + 1);
    const std::optional<std::int32_t> most = number(high);
    if (!high.empty() && !most) return std::nullopt;
    bounds.most = most.value_or(-1);
    if (most && *most < *least) return std::nullopt;
  }
  if (optional && (before > 0 || bounds.least > 1)) return std::nullopt;
  bounds.least = optional ? 0 : bounds.least + before;
  if (bounds.most >= 0) bounds.most += before;
  std::string unbounded(begins ? "^" : "");
  unbounded += core.substr(0, end);
  unbounded += ends ? "*$" : "*";
  return CountedPattern{std::move(unbounded), bounds};
}

LengthTracker::LengthTracker(const LengthPlan& plan) : plan_(&plan), bounds_(plan.whole) {
  if (plan.whole) where_ = Where::text;
}

bool LengthTracker::feed(std::string_view bytes) {
  for (const char c : bytes) {
    if (where_ == Where::between) {
      feed_structure(c);
    } else if (!feed_string(c)) {
      return false;
    }
  }
  return true;
}

bool LengthTracker::feed_string(char c) {
  if (bounds_ && (plan_->whole || c != '"')) {
    if (c == '\\' && !plan_->whole) return false;
    if (where_ == Where::key) key_ += c;
    if (!begins_character(c)) return true;
    return ++characters_ <= bounds_->most || bounds_->most < 0;
  }
  if (escaped_) {
    escaped_ = false;
  } else if (c == '"') {
    if (bounds_ && missing() > 0) return false;
    if (where_ == Where::key) next_place_ = member_place(frames_.back().place);
    where_ = Where::between;
    bounds_.reset();
    return true;
  } else {
    escaped_ = c == '\\';
  }
  if (where_ == Where::key) key_ += c;
  return true;
}

void LengthTracker::feed_structure(char c) {
  switch (c) {
    case '{':
      frames_.push_back({next_place_, 0, true});
      expects_key_ = true;
      return;
    case '[':
      frames_.push_back({next_place_, 0, false});
      next_place_ = item_place(frames_.back());
      return;
    case '}':
    case ']':
      if (!frames_.empty()) frames_.pop_back();
      expects_key_ = false;
      return;
    case ',':
      if (frames_.empty()) return;
      if (frames_.back().object) {
        expects_key_ = true;
      } else {
        ++frames_.back().index;
        next_place_ = item_place(frames_.back());
      }
      return;
    case '"':
      open_string();
      return;
    default:
      return;
  }
}

void LengthTracker::open_string() {
  escaped_ = false;
  characters_ = 0;
  bounds_ = next_bounds();
  where_ = expects_key_ ? Where::key : Where::text;
  if (!expects_key_) return;
  expects_key_ = false;
  key_.clear();
}

std::optional<LengthBounds> LengthTracker::next_bounds() const {
  const int place = expects_key_ ? frames_.back().place : next_place_;
  if (place == LengthPlan::kNowhere) return std::nullopt;
  const LengthPlan::Place& found = plan_->places[static_cast<std::size_t>(place)];
  return expects_key_ ? found.names : found.text;
}

int LengthTracker::member_place(int place) const {
  if (place == LengthPlan::kNowhere) return place;
  const LengthPlan::Place& object = plan_->places[static_cast<std::size_t>(place)];
  auto found = object.members.find(key_);
  if (found == object.members.end() && key_.find('\\') != key_.npos) {
    const Result<json::Value> name = json::parse('"' + key_ + '"');
    if (name.ok()) found = object.members.find(*name->string());
  }
  return found == object.members.end() ? object.others : found->second;
}

int LengthTracker::item_place(const Frame& frame) const {
  if (frame.place == LengthPlan::kNowhere) return frame.place;
  const LengthPlan::Place& array = plan_->places[static_cast<std::size_t>(frame.place)];
  return frame.index < array.prefix.size() ? array.prefix[frame.index] : array.items;
}

}  // namespace koho
