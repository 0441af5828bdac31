// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_rendezvous.h"

#include <array>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/patience.h"

namespace koho {
namespace {

using testing::kPatience;

Status gather(Rendezvous& rank, std::int64_t mine, std::span<std::int64_t> all) {
  return rank.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all));
}

TEST(ThreadRendezvous, EveryRankGetsAllPartsInRankOrderRoundAfterRound) {
  auto ranks = make_thread_rendezvous(4, kPatience);
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous& self = *ranks[static_cast<std::size_t>(rank)];
      for (std::int64_t round = 0; round < 200; ++round) {
        std::array<std::int64_t, 4> all{};
        ASSERT_TRUE(gather(self, 1000 * round + rank, all).ok());
        for (std::int64_t other = 0; other < 4; ++other)
          ASSERT_EQ(all[static_cast<std::size_t>(other)], 1000 * round + other);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadRendezvous, DifferentSizesAreAnErrorOfEveryRankAndTheNextRoundWorks) {
  auto ranks = make_thread_rendezvous(2, kPatience);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<std::byte> mine(8 + rank);
      std::vector<std::byte> all(2 * mine.size());
      const Status status = ranks[rank]->all_gather(mine, all);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::internal);
      std::array<std::int64_t, 2> values{};
      EXPECT_TRUE(gather(*ranks[rank], static_cast<std::int64_t>(rank), values).ok());
      EXPECT_EQ(values[1], 1);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadRendezvous, RefusesMoreThanARanksPart) {
  auto ranks = make_thread_rendezvous(1, kPatience);
  std::vector<std::byte> mine(Rendezvous::kBytesMax + 1);
  std::vector<std::byte> all(mine.size());
  const Status status = ranks[0]->all_gather(mine, all);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::invalid_argument);
}

TEST(ThreadRendezvous, ARankThatDoesNotComeIsAnErrorAfterTheTimeLimit) {
  auto ranks = make_thread_rendezvous(2, std::chrono::milliseconds(30));
  std::array<std::int64_t, 2> all{};
  const Status status = gather(*ranks[0], 1, all);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(gather(*ranks[1], 1, all).ok());  // it is too late
}

TEST(ThreadRendezvous, GiveUpEndsTheWait) {
  auto ranks = make_thread_rendezvous(2, kPatience);
  std::thread waiter([&] {
    std::array<std::int64_t, 2> all{};
    EXPECT_FALSE(gather(*ranks[0], 1, all).ok());
  });
  ranks[1]->give_up();
  waiter.join();
}

}  // namespace
}  // namespace koho
