// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace koho {
namespace {

constexpr std::size_t kBytes = 256;

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), by_first_byte_(kBytes) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[byte_at(tokens_[i].text, 0)];
    if (range.begin == range.end) range.begin = i;
    range.end = i + 1;
  }
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text,
                                                                std::size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    const Range& range = by_first_byte_[byte_at(text, begin)];
    if (range.begin == range.end) continue;
    if (const std::optional<Match> match = longest_at(text, begin)) return match;
  }
  return std::nullopt;
}

/// Narrows the range of sorted tokens to those that match the text so far, byte by byte.
std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::longest_at(std::string_view text,
                                                                      std::size_t begin) const {
  const Range& range = by_first_byte_[byte_at(text, begin)];
  auto low = tokens_.begin() + static_cast<std::ptrdiff_t>(range.begin);
  auto high = tokens_.begin() + static_cast<std::ptrdiff_t>(range.end);
  std::optional<Match> longest;
  for (std::size_t length = 1; low != high; ++length) {
    // Of tokens with a common prefix, the prefix itself sorts first.
    if (low->text.size() == length) {
      longest = Match{begin, begin + length, low->id};
      ++low;
    }
    if (begin + length == text.size()) break;
    const std::uint8_t next = byte_at(text, begin + length);
    low = std::partition_point(
        low, high, [&](const AddedToken& token) { return byte_at(token.text, length) < next; });
    high = std::partition_point(
        low, high, [&](const AddedToken& token) { return byte_at(token.text, length) == next; });
  }
  return longest;
}

}  // namespace koho
