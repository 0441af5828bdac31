// SPDX-License-Identifier: Apache-2.0
#include "comm/process_rendezvous.h"

#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/shared_memory.h"
#include "tests/support/on_every_rank.h"
#include "tests/support/patience.h"

namespace koho {
namespace {

using testing::kPatience;
using testing::on_every_rank;

/// A rendezvous of threads in the form of processes: each has its own mapping.
struct Group {
  std::vector<SharedMemory> mappings;
  std::vector<std::unique_ptr<Rendezvous>> ranks;

  explicit Group(std::int64_t count, std::chrono::milliseconds timeout = kPatience) {
    SharedMemory memory = *SharedMemory::create("test", process_rendezvous_bytes(count));
    for (std::int64_t rank = 0; rank < count; ++rank) {
      mappings.push_back(*SharedMemory::open(Descriptor(dup(memory.descriptor()))));
      ranks.push_back(make_process_rendezvous(mappings.back().bytes(), rank, count, timeout));
    }
  }
};

TEST(ProcessRendezvous, EveryRankGetsAllPartsInRankOrder) {
  Group group(4);
  on_every_rank(4, [&](std::size_t rank) {
    for (std::uint64_t round = 0; round < 2000; ++round) {
      const std::array<std::uint64_t, 2> mine{rank, round};
      std::array<std::uint64_t, 8> all{};
      ASSERT_TRUE(
          group.ranks[rank]
              ->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)))
              .ok());
      for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(all[2 * i], i);
        ASSERT_EQ(all[2 * i + 1], round);
      }
    }
  });
}

TEST(ProcessRendezvous, RanksThatDisagreeAreToldSo) {
  Group group(2);
  on_every_rank(2, [&](std::size_t rank) {
    std::array<std::byte, 8> mine{};
    std::array<std::byte, 16> all{};
    const std::size_t size = rank + 1;
    const Status status =
        group.ranks[rank]->all_gather(std::span(mine).first(size), std::span(all).first(2 * size));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::internal);
    EXPECT_TRUE(group.ranks[rank]->all_gather(mine, all).ok()) << "the group still works";
  });
}

TEST(ProcessRendezvous, ARankThatGivesUpFreesTheOthers) {
  Group group(2);
  std::thread other([&] { EXPECT_FALSE(group.ranks[0]->all_gather({}, {}).ok()); });
  group.ranks[1]->give_up();
  other.join();
}

TEST(ProcessRendezvous, ARankThatDoesNotComeIsAnErrorForAll) {
  Group group(2, std::chrono::milliseconds(20));
  const Status first = group.ranks[0]->all_gather({}, {});
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(group.ranks[1]->all_gather({}, {}).ok()) << "the group stays broken";
}

TEST(ProcessRendezvous, APartThatIsTooLongIsRefused) {
  Group group(1);
  std::vector<std::byte> mine(Rendezvous::kBytesMax + 1);
  const Status status = group.ranks[0]->all_gather(mine, mine);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace koho
