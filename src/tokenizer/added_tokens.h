// SPDX-License-Identifier: Apache-2.0
// Finds added tokens ("<|user|>", "<think>", ...) as whole strings in a text, before BPE: the
// leftmost match, and of several at one place the longest.
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
  bool special = false;     // decode() drops it if asked to skip special tokens
  bool normalized = false;  // searched after the others, in the text that those leave
};

/// Finds the tokens of one set in a text.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t id = -1;
  };

  /// Requires: the texts are not empty and differ from each other.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// The leftmost match at or after `from`; of several at one place the longest. Threads: any.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::optional<Match> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<AddedToken> tokens_;  // sorted by text
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Range> by_first_byte_;  // 256 ranges of tokens_
};

}  // namespace koho
