// SPDX-License-Identifier: Apache-2.0
#include "kvcache/prefix_cache.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace koho {
namespace {

constexpr std::array<std::uint64_t, 4> kSeed{1, 2, 3, 4};
constexpr std::int32_t kPage = 4;
constexpr std::int32_t kAllGiven = 1 << 20;

/// A pool and its cache, and what a sequence does with them.
struct Cache {
  PagePool pool;
  PrefixCache prefix;
  explicit Cache(std::int32_t pages) : pool(pages), prefix(pool, kPage, kSeed) {}

  /// Computes the full pages of `tokens` that are not found, releases everything, and returns how
  /// many pages were found.
  std::int32_t use(const std::vector<Token>& tokens, const CacheSalt& salt = {}) {
    std::vector<PageHandle> pages;
    const std::int32_t found = prefix.match(tokens, kAllGiven, salt, pages);
    for (std::size_t i = pages.size(); i < tokens.size() / kPage; ++i) {
      PageHandle page = pool.allocate();
      if (page.page == kNoPage && prefix.evict_oldest()) page = pool.allocate();
      EXPECT_NE(page.page, kNoPage);
      const PageId parent = i == 0 ? kNoPage : pages.back().page;
      const PageId cached = prefix.insert(parent, salt, std::span(tokens).subspan(i * kPage, kPage),
                                          kPage, page.page);
      if (cached != page.page) {
        pages.push_back(pool.share(cached));
        pool.release(page);
      } else {
        pages.push_back(page);
      }
    }
    for (std::size_t i = pages.size(); i > 0; --i) pool.release(pages[i - 1]);
    return found;
  }
};

std::vector<Token> count(int tokens, int from = 0) {
  std::vector<Token> result(static_cast<std::size_t>(tokens));
  std::iota(result.begin(), result.end(), from);
  return result;
}

TEST(PrefixCache, FindsFullPagesOfACommonBeginning) {
  Cache cache(8);
  EXPECT_EQ(cache.use(count(12)), 0);
  std::vector<Token> other = count(12);
  other[9] = 99;
  EXPECT_EQ(cache.use(other), 2);
  other[1] = 99;
  EXPECT_EQ(cache.use(other), 0);
}

TEST(PrefixCache, NeverFindsTheWholePrompt) {
  Cache cache(8);
  cache.use(count(12));
  EXPECT_EQ(cache.use(count(12)), 2);
  EXPECT_EQ(cache.use(count(13)), 3);
}

TEST(PrefixCache, KeepsTenantsApart) {
  Cache cache(8);
  cache.use(count(9), {1, 0});
  EXPECT_EQ(cache.use(count(9), {2, 0}), 0);
  EXPECT_EQ(cache.use(count(9), {1, 1}), 0);
  EXPECT_EQ(cache.use(count(9), {1, 0}), 2);
}

TEST(PrefixCache, FindsAPageBehindItsOwnPredecessorOnly) {
  Cache cache(8);
  std::vector<Token> first = count(9);
  std::vector<Token> second = count(9);
  second[0] = 77;  // the second pages are equal, the first ones differ
  cache.use(first);
  EXPECT_EQ(cache.use(second), 0);
  EXPECT_EQ(cache.prefix.size(), 4);
}

TEST(PrefixCache, GivesTheKnownPageForEqualTokens) {
  Cache cache(4);
  const PageHandle first = cache.pool.allocate();
  const PageHandle second = cache.pool.allocate();
  const std::vector<Token> tokens = count(kPage);
  EXPECT_EQ(cache.prefix.insert(kNoPage, {}, tokens, kPage, first.page), first.page);
  EXPECT_EQ(cache.prefix.insert(kNoPage, {}, tokens, kPage, second.page), first.page);
  EXPECT_FALSE(cache.pool.cached(second.page));
}

TEST(PrefixCache, EvictsTheLeastRecentlyUsedAndChildrenFirst) {
  Cache cache(4);
  cache.use(count(8));                // a, b
  cache.use(count(8, 100));           // c, d
  EXPECT_EQ(cache.use(count(9)), 2);  // a and b are younger now
  cache.use(count(4, 200));           // takes d's place, not c's
  EXPECT_EQ(cache.use(count(9, 100)), 1);
}

TEST(PrefixCache, ForgetsEverythingWhenCleared) {
  Cache cache(6);
  cache.use(count(12));
  cache.use(count(12, 50));
  cache.prefix.clear();
  EXPECT_EQ(cache.pool.free(), 6);
  EXPECT_EQ(cache.use(count(12)), 0);
}

TEST(PrefixCache, AgreesWithAListOfKnownPrefixesOverManyRandomPrompts) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    Cache cache(4096);  // never evicts, so that the model is a plain set
    std::vector<std::pair<std::uint64_t, std::vector<Token>>> known;
    for (int i = 0; i < 100; ++i) {
      std::vector<Token> tokens(1 + random() % 20);
      for (Token& token : tokens) token = static_cast<Token>(random() % 2);
      const std::uint64_t salt = random() % 2;
      std::size_t expected = 0;
      for (const auto& [other_salt, other] : known) {
        if (other_salt != salt) continue;
        const auto [here, there] =
            std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end());
        const auto common = static_cast<std::size_t>(here - tokens.begin());
        const std::size_t whole = std::min<std::size_t>(common, tokens.size() - 1) / kPage;
        expected = std::max(expected, whole);
      }
      ASSERT_EQ(cache.use(tokens, {salt, 0}), static_cast<std::int32_t>(expected));
      known.emplace_back(salt, tokens);
    }
  }
}

TEST(PrefixCache, TellsGivenTokensFromOutput) {
  Cache cache(8);
  PagePool& pool = cache.pool;
  const std::vector<Token> tokens = count(13);
  // A prompt of six tokens and six of output: pages with 4, 2 and 0 given ones.
  PageId parent = kNoPage;
  for (std::int32_t i = 0; i < 3; ++i) {
    const std::span<const Token> of_page =
        std::span(tokens).subspan(static_cast<std::size_t>(i) * kPage, kPage);
    parent = cache.prefix.insert(parent, {}, of_page, std::clamp(6 - i * kPage, 0, kPage),
                                 pool.allocate().page);
  }
  for (const auto& [given, pages] : {std::pair(6, 3), {13, 1}, {7, 1}, {4, 1}, {3, 0}, {0, 0}}) {
    std::vector<PageHandle> found;
    EXPECT_EQ(cache.prefix.match(tokens, given, {}, found), pages) << given;
    std::array<std::int32_t, 1> counted{};
    cache.prefix.count_matches(tokens, given, {}, counted);
    EXPECT_EQ(counted[0], pages) << given;
    for (const PageHandle page : found) pool.release(page);
  }
  EXPECT_EQ(cache.use(tokens), 1) << "the same tokens as a prompt";
  EXPECT_EQ(cache.use(tokens), 3);
  EXPECT_EQ(cache.prefix.size(), 5);
}

TEST(PrefixCache, FindsThePagesOfOnePartitionOnly) {
  PagePool pool(12, 3);
  PrefixCache prefix(pool, kPage, kSeed);
  const std::vector<Token> tokens = count(13);
  // Partition 0 has the first two pages, partition 2 all three, equal ones.
  for (const std::int32_t partition : {0, 2}) {
    PageId parent = kNoPage;
    for (std::size_t i = 0; i < (partition == 0 ? 2U : 3U); ++i) {
      const PageHandle page = pool.allocate(partition);
      EXPECT_EQ(
          prefix.insert(parent, {}, std::span(tokens).subspan(i * kPage, kPage), kPage, page.page),
          page.page);
      parent = page.page;
    }
  }
  std::array<std::int32_t, 3> found{};
  prefix.count_matches(tokens, kAllGiven, {}, found);
  EXPECT_EQ(found, (std::array<std::int32_t, 3>{2, 0, 3}));
  prefix.count_matches(std::span(tokens).first(12), kAllGiven, {}, found);
  EXPECT_EQ(found, (std::array<std::int32_t, 3>{2, 0, 2})) << "never the whole prompt";
  prefix.count_matches(tokens, kAllGiven, {1, 0}, found);
  EXPECT_EQ(found, (std::array<std::int32_t, 3>{0, 0, 0}));
  for (std::int32_t partition = 0; partition < 3; ++partition) {
    std::vector<PageHandle> pages;
    prefix.match(tokens, kAllGiven, {}, pages, partition);
    EXPECT_EQ(pages.size(), partition == 0 ? 2U : partition == 1 ? 0U : 3U);
    for (const PageHandle page : pages) EXPECT_EQ(pool.partition_of(page.page), partition);
  }
}

}  // namespace
}  // namespace koho
