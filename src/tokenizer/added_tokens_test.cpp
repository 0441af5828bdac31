// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/added_tokens.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace koho {
namespace {

AddedTokenMatcher matcher(const std::vector<std::string>& texts) {
  std::vector<AddedToken> tokens;
  for (const std::string& text : texts)
    tokens.push_back({text, static_cast<std::int32_t>(tokens.size()), false, false});
  return AddedTokenMatcher(tokens);
}

/// The ids of all matches, left to right.
std::vector<std::int32_t> all(const AddedTokenMatcher& tokens, std::string_view text) {
  std::vector<std::int32_t> ids;
  std::size_t at = 0;
  while (const auto match = tokens.find(text, at)) {
    ids.push_back(match->id);
    at = match->end;
  }
  return ids;
}

using Ids = std::vector<std::int32_t>;

TEST(AddedTokens, PrefersTheLongestOfThoseThatBeginTogether) {
  const AddedTokenMatcher tokens = matcher({"<a>", "<a>b", "<a>bcd"});
  EXPECT_EQ(all(tokens, "<a>bcd"), Ids{2});
  EXPECT_EQ(all(tokens, "<a>bce"), Ids{1});
  EXPECT_EQ(all(tokens, "<a><a>b"), (Ids{0, 1}));
}

TEST(AddedTokens, PrefersTheLeftmostToALongerOneThatOverlaps) {
  EXPECT_EQ(all(matcher({"ab", "bcdef"}), "abcdef"), Ids{0});
}

TEST(AddedTokens, FindsNothingInPrefixesAndInEmptyText) {
  const AddedTokenMatcher tokens = matcher({"<|user|>"});
  EXPECT_TRUE(all(tokens, "").empty());
  EXPECT_TRUE(all(tokens, "<|user|").empty());
  EXPECT_TRUE(all(tokens, "<|User|>").empty());
  EXPECT_EQ(all(tokens, "<<|user|>>"), Ids{0});
  EXPECT_TRUE(all(matcher({}), "anything").empty());
}

TEST(AddedTokens, ReportsThePositionOfAMatch) {
  const auto match = matcher({"é"}).find("caféé", 4);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 5U);
  EXPECT_EQ(match->end, 7U);
}

}  // namespace
}  // namespace koho
