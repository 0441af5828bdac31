// SPDX-License-Identifier: Apache-2.0
// Compares byte-pair encoding with a direct implementation of its definition: merge the leftmost of
// the adjacent pairs of lowest rank, until no pair can be merged.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer.h"

namespace koho {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::TokenizerRecipe;

class Definition {
 public:
  explicit Definition(const TokenizerRecipe& recipe) {
    for (unsigned byte = 0; byte < 256; ++byte)
      ids_[std::string(1, static_cast<char>(byte))] = byte;
    for (const std::string& token : recipe.tokens) ids_.emplace(token, ids_.size());
    for (std::size_t i = 0; i < recipe.merges.size(); ++i) ranks_[recipe.merges[i]] = i;
  }

  Ids encode(std::string_view piece) const {
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    while (true) {
      std::size_t best = parts.size();
      std::size_t best_rank = SIZE_MAX;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks_.find({parts[i], parts[i + 1]});
        if (found != ranks_.end() && found->second < best_rank) {
          best = i;
          best_rank = found->second;
        }
      }
      if (best == parts.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) ids.push_back(static_cast<std::int32_t>(ids_.at(part)));
    return ids;
  }

 private:
  std::map<std::string, std::size_t> ids_;
  std::map<std::pair<std::string, std::string>, std::size_t> ranks_;
};

/// A recipe with few letters, so that pairs are frequent. Every text is one piece.
TokenizerRecipe dense_recipe(std::mt19937& random) {
  TokenizerRecipe recipe;
  recipe.pattern = "[^\\n]+";
  std::vector<std::string> all{"a", "b", "c"};
  while (recipe.tokens.size() < 60) {
    const std::string left = all[random() % all.size()];
    const std::string right = all[random() % all.size()];
    if (left.size() + right.size() > 9) continue;
    if (std::find(all.begin(), all.end(), left + right) == all.end()) {
      all.push_back(left + right);
      recipe.tokens.push_back(left + right);
    }
    const std::pair<std::string, std::string> merge(left, right);
    if (std::find(recipe.merges.begin(), recipe.merges.end(), merge) == recipe.merges.end())
      recipe.merges.push_back(merge);
  }
  return recipe;
}

std::string random_text(std::mt19937& random, std::size_t length) {
  std::string text;
  while (text.size() < length) text.append(1 + random() % 5, "abc"[random() % 3]);
  text.resize(length);
  return text;
}

// Uses lengths on both sides of the threshold between the two algorithms, and ranks both in the
// order of training and shuffled: then a merge can produce a pair of lower rank than its own.
TEST(BpeDefinition, HoldsForShortAndLongPiecesAndAnyOrderOfRanks) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    TokenizerRecipe recipe = dense_recipe(random);
    if (round % 2 == 1) std::shuffle(recipe.merges.begin(), recipe.merges.end(), random);
    recipe.merges_as_pairs = round % 4 < 2;
    const Result<Tokenizer> tokenizer = Tokenizer::from_json(testing::tokenizer_json(recipe));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const Definition definition(recipe);
    for (const std::size_t length :
         {1U, 2U, 3U, 5U, 9U, 17U, 40U, 63U, 64U, 65U, 66U, 130U, 300U}) {
      const std::string text = random_text(random, length);
      const Result<Ids> ids = tokenizer->encode(text);
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(*ids, definition.encode(text)) << text;
    }
  }
}

TEST(BpeDefinition, NeverProducesATokenThatNoMergeProduces) {
  TokenizerRecipe recipe;
  recipe.tokens = {"ab", "bc", "abc"};
  recipe.merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  for (const bool ignore_merges : {false, true}) {
    recipe.ignore_merges = ignore_merges;
    const Result<Tokenizer> tokenizer = Tokenizer::from_json(testing::tokenizer_json(recipe));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ(*tokenizer->encode("abc"), ignore_merges ? Ids{258} : (Ids{'a', 257}));
  }
}

TEST(BpeDefinition, UsesTheLaterRankOfARepeatedMerge) {
  TokenizerRecipe recipe;
  recipe.tokens = {"ab", "bc"};
  recipe.merges = {{"a", "b"}, {"b", "c"}, {"a", "b"}};
  const Result<Tokenizer> tokenizer = Tokenizer::from_json(testing::tokenizer_json(recipe));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->encode("abc"), (Ids{'a', 257}));
}

}  // namespace
}  // namespace koho
