// SPDX-License-Identifier: Apache-2.0
// Added tokens ("<|user|>", "<think>", ...): found in text as whole strings before any BPE,
// leftmost first and longest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koho {

struct AddedToken {
  std::string text;
  std::int32_t id = -1;
  bool special = false;     // dropped by decode when asked to
  bool normalized = false;  // looked for after those that are not, in what those leave
};

/// Finds tokens of one set in a text.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t id = -1;
  };

  /// Requires: no empty text, no text twice.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// The leftmost match at or after `from`; of several there, the longest. Threads: any.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::optional<Match> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<AddedToken> tokens_;  // by text
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Range> by_first_byte_;  // 256 ranges of tokens_
};

}  // namespace koho
