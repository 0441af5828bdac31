// SPDX-License-Identifier: Apache-2.0
// How many characters strings may have, counted beside a grammar instead of by it: a grammar over
// tokens needs a state, and a walk through the vocabulary, for every character that it counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koho {

/// Characters, that is code points.
struct LengthBounds {
  std::int32_t least = 0;
  std::int32_t most = -1;  // -1: no bound
  bool operator==(const LengthBounds&) const = default;
};

/// Where in a JSON text strings have bounds. Bounded strings hold no escapes.
struct LengthPlan {
  static constexpr int kNowhere = -1;  // nothing at this place or below it has bounds

  /// The values that may stand at one place: by the schema they agree in all of this.
  struct Place {
    std::optional<LengthBounds> text;                 // of a string
    std::map<std::string, int, std::less<>> members;  // of an object: places by name …
    int others = kNowhere;                            // … and of all other names
    std::vector<int> prefix;                          // of an array
    int items = kNowhere;
  };
  std::vector<Place> places;          // the first is the whole text's
  std::optional<LengthBounds> whole;  // no JSON: the bounds of all of the text
};

/// A regular expression that is one class of characters, repeated within bounds: with the bounds
/// taken away, and these. nullopt for all others.
struct CountedPattern {
  std::string unbounded;
  LengthBounds bounds;
};
std::optional<CountedPattern> counted_pattern(std::string_view pattern);

/// Whether a character begins with this byte of UTF-8.
inline bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// Follows a text that obeys the grammar; `plan` outlives it.
class LengthTracker {
 public:
  explicit LengthTracker(const LengthPlan& plan);

  /// Takes the next bytes; false if a string gets too long or ends too early, or has bounds and an
  /// escape: then the tracker is of no use any more.
  bool feed(std::string_view bytes);

  /// Of the string that would begin now, outside of one.
  std::optional<LengthBounds> next_bounds() const;
  bool in_string() const { return where_ != Where::between; }
  /// Within a string that has bounds, or a whole text that has.
  bool counts() const { return bounds_.has_value(); }
  /// Characters that may still come; -1: any number. Requires: counts().
  std::int32_t left() const { return bounds_->most < 0 ? -1 : bounds_->most - characters_; }
  /// Characters that must still come. Requires: counts().
  std::int32_t missing() const {
    return characters_ < bounds_->least ? bounds_->least - characters_ : 0;
  }

 private:
  enum class Where : std::uint8_t { between, key, text };
  struct Frame {
    int place = LengthPlan::kNowhere;
    std::size_t index = 0;  // of an array's item
    bool object = false;
  };
  bool feed_string(char c);
  void feed_structure(char c);
  void open_string();
  int member_place(int place) const;
  int item_place(const Frame& frame) const;

  const LengthPlan* plan_;
  std::vector<Frame> frames_;
  int next_place_ = 0;  // of the value that comes next
  Where where_ = Where::between;
  bool expects_key_ = false;
  bool escaped_ = false;
  std::optional<LengthBounds> bounds_;
  std::int32_t characters_ = 0;
  std::string key_;
};

}  // namespace koho
