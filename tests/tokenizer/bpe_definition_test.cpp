// SPDX-License-Identifier: Apache-2.0
// Compares byte-pair encoding with a direct implementation of its definition: merge the leftmost of
// the adjacent pairs of lowest rank, until no pair can be merged.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tokenizer/tokenizer_json.h"
#include "tokenizer/bpe.h"
#include "tokenizer/token_list.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocabulary.h"

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
  friend class QueuedDefinition;
  std::map<std::string, std::size_t> ids_;
  std::map<std::pair<std::string, std::string>, std::size_t> ranks_;
};

/// The same for long pieces: all pairs stand in a set, in the order in which they are merged.
class QueuedDefinition {
 public:
  explicit QueuedDefinition(const Definition& definition) : definition_(definition) {}

  Ids encode(std::string_view piece) const {
    std::map<std::size_t, std::string> parts;  // by place
    for (std::size_t i = 0; i < piece.size(); ++i) parts[i] = piece.substr(i, 1);
    std::set<std::pair<std::size_t, std::size_t>> pairs;  // rank and place of the left part
    const auto rank = [&](std::map<std::size_t, std::string>::const_iterator left) {
      const auto right = std::next(left);
      if (right == parts.end()) return SIZE_MAX;
      const auto found = definition_.ranks_.find({left->second, right->second});
      return found == definition_.ranks_.end() ? SIZE_MAX : found->second;
    };
    const auto add = [&](auto left) {
      if (rank(left) != SIZE_MAX) pairs.emplace(rank(left), left->first);
    };
    const auto remove = [&](auto left) { pairs.erase({rank(left), left->first}); };
    for (auto left = parts.begin(); left != parts.end(); ++left) add(left);
    while (!pairs.empty()) {
      const auto left = parts.find(pairs.begin()->second);
      const auto right = std::next(left);
      if (left != parts.begin()) remove(std::prev(left));
      remove(left);
      remove(right);
      left->second += right->second;
      parts.erase(right);
      if (left != parts.begin()) add(std::prev(left));
      add(left);
    }
    Ids ids;
    for (const auto& [place, part] : parts)
      ids.push_back(static_cast<std::int32_t>(definition_.ids_.at(part)));
    return ids;
  }

 private:
  const Definition& definition_;
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

// Longer than several windows of the encoder. Some texts repeat a few letters, so that a token's
// place depends on what stands thousands of bytes before.
TEST(BpeDefinition, HoldsForPiecesOfManyWindowsAndAnyOrderOfRanks) {
  std::mt19937 random(11);
  for (int round = 0; round < 6; ++round) {
    TokenizerRecipe recipe =
        round == 4 ? testing::doubling_recipe({"a", "ab", "abc"}) : dense_recipe(random);
    recipe.pattern = "[^\\n]+";
    if (round % 2 == 1) std::shuffle(recipe.merges.begin(), recipe.merges.end(), random);
    const Result<Tokenizer> tokenizer = Tokenizer::from_json(testing::tokenizer_json(recipe));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const Definition definition(recipe);
    const QueuedDefinition queued(definition);
    const std::string shorter = random_text(random, 250);
    ASSERT_EQ(queued.encode(shorter), definition.encode(shorter));
    std::string text = random_text(random, 150'000);
    const std::string unit = random_text(random, 1 + random() % 7);
    if (round >= 3)
      for (std::size_t i = 1000; i < text.size(); ++i) text[i] = unit[i % unit.size()];
    const Result<Ids> ids = tokenizer->encode(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_TRUE(*ids == queued.encode(text)) << "round " << round << ", unit " << unit;
    // Of more ids than a caller takes, the first ones.
    std::size_t total = 0;
    const TextSegment segment{.text = text};
    const Result<Ids> first = tokenizer->encode(std::span(&segment, 1), 1000, total);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(total, ids->size());
    EXPECT_TRUE(std::ranges::equal(
        *first, std::span(*ids).first(std::min<std::size_t>(1000, ids->size()))));
  }
}

// Windows so short that their tokens often disagree where they overlap.
TEST(BpeDefinition, HoldsForShortWindows) {
  std::mt19937 random(13);
  for (int round = 0; round < 60; ++round) {
    TokenizerRecipe recipe = dense_recipe(random);
    if (round % 2 == 1) std::shuffle(recipe.merges.begin(), recipe.merges.end(), random);
    const Result<TokenizerFile> file = parse_tokenizer_file(testing::tokenizer_json(recipe));
    ASSERT_TRUE(file.ok()) << file.error().message;
    Result<Vocabulary> vocabulary = Vocabulary::build(file->spellings, file->ids);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.error().message;
    const Result<Bpe> bpe = Bpe::build(std::move(*vocabulary), file->merges, false);
    ASSERT_TRUE(bpe.ok()) << bpe.error().message;
    const Definition definition(recipe);
    for (int i = 0; i < 8; ++i) {
      const std::string text = random_text(random, 400);
      const Ids expected = definition.encode(text);
      for (const std::size_t overlap : {1U, 3U, 8U}) {
        TokenList list;
        bpe->encode(text, list, {.bytes = 65U + random() % 40U, .overlap = overlap});
        ASSERT_EQ(list.ids, expected) << text << ", overlap " << overlap;
        TokenList few{.ids_max = 20};
        bpe->encode(text, few, {.bytes = 70, .overlap = overlap});
        few.keep();
        ASSERT_EQ(few.ids.size() + few.dropped, expected.size());
        ASSERT_TRUE(std::ranges::equal(few.ids, std::span(expected).first(few.ids.size())));
      }
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
