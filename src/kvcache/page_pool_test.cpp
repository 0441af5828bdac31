// SPDX-License-Identifier: Apache-2.0
#include "kvcache/page_pool.h"

#include <deque>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace koho {
namespace {

TEST(PagePool, GivesEveryPageOnceAndThenNone) {
  PagePool pool(3);
  std::map<PageId, int> seen;
  for (int i = 0; i < 3; ++i) ++seen[pool.allocate().page];
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_EQ(pool.allocate().page, kNoPage);
  EXPECT_EQ(pool.owned(), 3);
}

TEST(PagePool, FreesAPageWithItsLastOwner) {
  PagePool pool(1);
  const PageHandle page = pool.allocate();
  pool.share(page.page);
  pool.release(page);
  EXPECT_EQ(pool.free(), 0);
  pool.release(page);
  EXPECT_EQ(pool.free(), 1);
}

TEST(PagePool, ATakenPageHasANewGeneration) {
  PagePool pool(1);
  const PageHandle first = pool.allocate();
  pool.release(first);
  const PageHandle second = pool.allocate();
  EXPECT_EQ(first.page, second.page);
  EXPECT_FALSE(pool.current(first));
  EXPECT_TRUE(pool.current(second));
}

TEST(PagePool, ACachedPageIdlesUntilItIsReclaimed) {
  PagePool pool(1);
  const PageHandle page = pool.allocate();
  pool.set_cached(page.page);
  pool.release(page);
  EXPECT_EQ(pool.idle(), 1);
  EXPECT_EQ(pool.allocate().page, kNoPage);
  pool.share(page.page);
  EXPECT_EQ(pool.idle(), 0);
  pool.release(page);
  pool.reclaim(pool.oldest_idle());
  EXPECT_NE(pool.allocate().page, kNoPage);
}

TEST(PagePoolDeathTest, ADoubleReleaseStopsTheProgram) {
  PagePool pool(2);
  const PageHandle page = pool.allocate();
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "check failed");
  const PageHandle again = pool.allocate();
  const PageHandle stale{again.page, again.generation - 1};
  EXPECT_DEATH(pool.release(stale), "check failed");
}

TEST(PagePool, AgreesWithASimpleModelOverManyRandomOperations) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const int pages = 1 + static_cast<int>(random() % 12);
    PagePool pool(pages);
    std::map<PageId, std::vector<PageHandle>> owned;  // the model
    std::map<PageId, bool> cached;
    std::deque<PageId> idle;  // oldest first
    for (int i = 0; i < 500; ++i) {
      const auto pick = [&random, &owned] {
        return std::next(owned.begin(), static_cast<std::ptrdiff_t>(random() % owned.size()));
      };
      switch (random() % 5) {
        case 0: {
          const PageHandle page = pool.allocate();
          ASSERT_EQ(page.page == kNoPage, static_cast<int>(owned.size() + idle.size()) == pages);
          if (page.page != kNoPage) owned[page.page].push_back(page);
          break;
        }
        case 1:
          if (!owned.empty()) {
            const auto chosen = pick();
            chosen->second.push_back(pool.share(chosen->first));
          } else if (!idle.empty()) {
            const PageId page = idle[random() % idle.size()];
            owned[page].push_back(pool.share(page));
            std::erase(idle, page);
          }
          break;
        case 2:
        case 3:
          if (!owned.empty()) {
            const auto chosen = pick();
            pool.release(chosen->second.back());
            chosen->second.pop_back();
            if (chosen->second.empty()) {
              if (cached[chosen->first]) idle.push_back(chosen->first);
              owned.erase(chosen);
            }
          }
          break;
        default:
          if (!owned.empty() && random() % 2 == 0) {
            const PageId page = pick()->first;
            if (!cached[page]) {
              pool.set_cached(page);
              cached[page] = true;
            }
          } else if (!idle.empty()) {
            ASSERT_EQ(pool.oldest_idle(), idle.front());
            pool.reclaim(idle.front());
            cached[idle.front()] = false;
            idle.pop_front();
          }
      }
      ASSERT_EQ(pool.owned(), static_cast<int>(owned.size()));
      ASSERT_EQ(pool.idle(), static_cast<int>(idle.size()));
      ASSERT_EQ(pool.free(), pages - static_cast<int>(owned.size() + idle.size()));
      for (const auto& [page, owners] : owned)
        ASSERT_EQ(pool.ref_count(page), static_cast<int>(owners.size()));
    }
  }
}

TEST(PagePool, KeepsPartitionsApart) {
  PagePool pool(6, 2);
  EXPECT_EQ(pool.partitions(), 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pool.partition_of(pool.allocate(1).page), 1);
  EXPECT_EQ(pool.allocate(1).page, kNoPage);
  EXPECT_EQ(pool.available(1), 0);
  EXPECT_EQ(pool.available(0), 3);
  const PageHandle page = pool.allocate(0);
  EXPECT_EQ(pool.partition_of(page.page), 0);
  pool.set_cached(page.page);
  pool.release(page);
  EXPECT_EQ(pool.oldest_idle(0), page.page);
  EXPECT_EQ(pool.oldest_idle(1), kNoPage);
  EXPECT_EQ(pool.free() + pool.idle() + pool.owned(), 6);
  EXPECT_EQ(pool.idle(), 1);
}

}  // namespace
}  // namespace koho
