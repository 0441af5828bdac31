// SPDX-License-Identifier: Apache-2.0
// Stop strings over a stream of text pieces: nothing of a stop string is ever emitted, wherever the
// pieces' borders fall, and nothing else is held back longer than it could still become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace koho {

class StopStrings {
 public:
  /// Requires: no stop string is empty.
  explicit StopStrings(std::vector<std::string> stops);

  /// Adds a piece and returns the text that may be shown now. After a match it returns the text
  /// before the stop string, and nothing from then on.
  std::string feed(std::string_view piece);
  /// The stream has ended: returns what was held back.
  std::string flush();

  bool matched() const { return matched_ != nullptr; }
  /// The stop string that ended the text. Requires: matched().
  const std::string& match() const { return *matched_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;  // not shown yet: could be the beginning of a stop string
  const std::string* matched_ = nullptr;
};

}  // namespace koho
