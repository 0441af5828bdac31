// SPDX-License-Identifier: Apache-2.0
#include "grammar/string_lengths.h"

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
  const std::size_t head = class_end(core);
  if (head == core.npos || core.size() < head + 3 || core[head] != '{' || core.back() != '}')
    return std::nullopt;
  const std::string_view range = core.substr(head + 1, core.size() - head - 2);
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
  std::string unbounded(begins ? "^" : "");
  unbounded += core.substr(0, head);
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
  if (expects_key_) {
    expects_key_ = false;
    where_ = Where::key;
    key_.clear();
    return;
  }
  where_ = Where::text;
  characters_ = 0;
  bounds_ = next_bounds();
}

std::optional<LengthBounds> LengthTracker::next_bounds() const {
  if (expects_key_ || next_place_ == LengthPlan::kNowhere) return std::nullopt;
  return plan_->places[static_cast<std::size_t>(next_place_)].text;
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
