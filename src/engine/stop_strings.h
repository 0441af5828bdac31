// SPDX-License-Identifier: Apache-2.0
// Stop strings over a stream of text pieces: nothing of a stop string is ever shown (unless asked
// for), wherever the pieces' boundaries fall, and nothing is held back longer than it could still
// become one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace koho {

/// After each byte the matcher knows, per stop string, how much of it the text ends with (Knuth,
/// Morris, Pratt), so a byte costs O(stop strings) on average, whatever came before. The stop
/// string whose end comes first ends the text, the longest of these: how the text was cut into
/// pieces changes nothing.
class StopStrings {
 public:
  StopStrings() = default;
  /// Requires: no stop string is empty. `include` shows the matched stop string, too.
  explicit StopStrings(std::vector<std::string> stops, bool include = false);

  /// Adds a piece and appends to `shown` the text that may be shown now: after a match the text
  /// before the stop string, and nothing from then on.
  void feed(std::string_view piece, std::string& shown);
  /// The stream has ended: appends what was held back.
  void flush(std::string& shown);

  std::string feed(std::string_view piece) {
    std::string shown;
    feed(piece, shown);
    return shown;
  }
  std::string flush() {
    std::string shown;
    flush(shown);
    return shown;
  }

  bool matched() const { return match_ >= 0; }
  /// The stop string that ended the text, and its place in the list. Requires: matched().
  const std::string& match() const { return stops_[static_cast<std::size_t>(match_)].text; }
  std::int32_t match_index() const { return match_; }

 private:
  struct Stop {
    std::string text;
    /// fallback[i]: the longest proper prefix of the first i+1 bytes that is a suffix of them, too.
    std::vector<std::size_t> fallback;
    std::size_t matched = 0;  // bytes of it that the text ends with
  };

  static bool advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;  // not shown yet: could be the beginning of a stop string
  std::int32_t match_ = -1;
  bool include_ = false;
};

}  // namespace koho
