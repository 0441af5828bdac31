// SPDX-License-Identifier: Apache-2.0
#include "base/host_cpus.h"

#include <fstream>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace koho {
namespace {

using Node = std::optional<int>;

std::vector<int> range(int first, int count) {
  std::vector<int> cpus;
  for (int cpu = first; cpu < first + count; ++cpu) cpus.push_back(cpu);
  return cpus;
}

TEST(HostCpus, ReadsTheSystemsLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5"), std::vector<int>{5});
  for (const char* none : {"", "a", "3-", "3-1", "-1", "1,,2", "0-99999999"})
    EXPECT_TRUE(parse_cpu_list(none).empty()) << none;
}

TEST(HostCpus, FindsADevicesNodeAndItsCpus) {
  const testing::TemporaryDirectory sys;
  const auto device = sys.path() / "bus" / "pci" / "devices" / "0000:1b:00.0";
  const auto node = sys.path() / "devices" / "system" / "node" / "node1";
  std::filesystem::create_directories(device);
  std::filesystem::create_directories(node);
  std::ofstream(device / "numa_node") << "1\n";
  std::ofstream(node / "cpulist") << "4-7,12-15\n";
  EXPECT_EQ(numa_node_of_pci("0000:1B:00.0", sys.path()), 1);
  EXPECT_EQ(cpus_of_numa_node(1, sys.path()), (std::vector<int>{4, 5, 6, 7, 12, 13, 14, 15}));
  std::ofstream(device / "numa_node") << "-1\n";
  EXPECT_EQ(numa_node_of_pci("0000:1B:00.0", sys.path()), std::nullopt);
  EXPECT_EQ(numa_node_of_pci("0000:2B:00.0", sys.path()), std::nullopt);
  EXPECT_TRUE(cpus_of_numa_node(2, sys.path()).empty());
}

TEST(HostCpus, RanksOfANodeDivideItsCpusAndShareNone) {
  const std::vector<Node> nodes{0, 1, 0, 1};
  const std::vector<std::vector<int>> cpus{range(0, 7), range(8, 8), range(0, 7), range(8, 8)};
  const std::vector<int> allowed = range(0, 16);
  std::set<int> taken;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank)
    for (const int cpu : share_of_cpus(rank, nodes, cpus, allowed)) {
      EXPECT_TRUE(taken.insert(cpu).second);
      EXPECT_EQ(cpu >= 8, rank % 2 == 1);
    }
  EXPECT_EQ(taken.size(), 15U);
}

TEST(HostCpus, DividesAllCpusWhereNodesAreUnknownOrNotAllowed) {
  const std::vector<int> allowed = range(4, 4);
  const std::vector<std::vector<int>> none(2);
  EXPECT_EQ(share_of_cpus(1, std::vector<Node>{{}, {}}, none, allowed), range(6, 2));
  const std::vector<std::vector<int>> elsewhere{range(0, 4), range(0, 4)};
  EXPECT_EQ(share_of_cpus(0, std::vector<Node>{0, 0}, elsewhere, allowed), range(4, 2));
}

TEST(HostCpus, GivesEveryRankACpuEvenWhereTheyAreFew) {
  const std::vector<int> allowed{3, 5};
  const std::vector<Node> nodes(8);
  const std::vector<std::vector<int>> none(8);
  for (std::size_t rank = 0; rank < 8; ++rank)
    EXPECT_EQ(share_of_cpus(rank, nodes, none, allowed).size(), 1U) << rank;
  EXPECT_EQ(share_of_cpus(7, nodes, none, allowed), std::vector<int>{5});
}

TEST(HostCpus, KeepsAThreadOnItsCpus) {
  const std::vector<int> allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  std::thread([&] {
    ASSERT_TRUE(keep_thread_on(std::span(allowed).first(1)));
    EXPECT_EQ(allowed_cpus(), std::vector<int>{allowed[0]});
    EXPECT_FALSE(keep_thread_on({}));
  }).join();
  EXPECT_EQ(allowed_cpus(), allowed);
}

}  // namespace
}  // namespace koho
