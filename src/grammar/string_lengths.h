// SPDX-License-Identifier: Apache-2.0
// Counts the characters of strings with length bounds outside of the grammar. Inside a grammar over
// tokens each counted character is a state, and each state costs a pass over the vocabulary when
// the grammar is compiled; here a bound of any size costs the same. LengthTracker follows the JSON
// text and says how many characters the current string may and must still get; counted_grammar.h
// turns that into token masks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/utf8.h"

namespace koho {

/// Bounds of a string's length in code points.
struct LengthBounds {
  std::int32_t least = 0;
  std::int32_t most = -1;  // -1: no bound
  bool operator==(const LengthBounds&) const = default;
};

/// Which strings of a JSON text have bounds. A bounded string contains no escapes.
struct LengthPlan {
  static constexpr int kNowhere = -1;  // no string at this place or below it has bounds

  /// One place of the JSON text. All schemas that apply there agree in the following.
  struct Place {
    std::optional<LengthBounds> text;                 // bounds, if the value is a string
    std::optional<LengthBounds> names;                // object: of each member's name
    std::map<std::string, int, std::less<>> members;  // object: the place of each named member
    int others = kNowhere;                            // object: the place of all other members
    std::vector<int> prefix;                          // array: the places of the first items
    int items = kNowhere;                             // array: the place of all further items
  };
  std::vector<Place> places;          // [0] is the root
  std::optional<LengthBounds> whole;  // not JSON: bounds of the whole text
};

/// "." of a regular expression: ECMA-262's four ends of lines are no such character.
inline constexpr std::string_view kAnyOfALine = R"([^\n\r\u2028\u2029])";

/// Splits a regular expression that ends in one character class within bounds, after characters
/// without ("^[a-z][a-z0-9]{0,63}$"), into the same without bounds ("^[a-z][a-z0-9]*$") and the
/// bounds of the whole. nullopt for any other expression.
struct CountedPattern {
  std::string unbounded;
  LengthBounds bounds;
};
std::optional<CountedPattern> counted_pattern(std::string_view pattern);

/// Follows a text that the grammar allows. Requires: `plan` outlives it.
class LengthTracker {
 public:
  explicit LengthTracker(const LengthPlan& plan);

  /// Follows `bytes`. false if a bounded string becomes too long, ends too early or contains an
  /// escape; the tracker must not be used after that.
  bool feed(std::string_view bytes);

  /// The bounds of a string that starts now. Requires: !in_string().
  std::optional<LengthBounds> next_bounds() const;
  bool in_string() const { return where_ != Where::between; }
  /// Whether the current string, or the whole text, has bounds.
  bool counts() const { return bounds_.has_value(); }
  /// Characters that may still follow; -1: any number. Requires: counts().
  std::int32_t left() const { return bounds_->most < 0 ? -1 : bounds_->most - characters_; }
  /// Characters that must still follow. Requires: counts().
  std::int32_t missing() const {
    return characters_ < bounds_->least ? bounds_->least - characters_ : 0;
  }

 private:
  enum class Where : std::uint8_t { between, key, text };
  struct Frame {
    int place = LengthPlan::kNowhere;
    std::size_t index = 0;  // array: of the current item
    bool object = false;
  };
  bool feed_string(char c);
  void feed_structure(char c);
  void open_string();
  int member_place(int place) const;
  int item_place(const Frame& frame) const;

  const LengthPlan* plan_;
  std::vector<Frame> frames_;
  int next_place_ = 0;  // the place of the next value
  Where where_ = Where::between;
  bool expects_key_ = false;
  bool escaped_ = false;
  std::optional<LengthBounds> bounds_;
  std::int32_t characters_ = 0;
  std::string key_;
};

}  // namespace koho
