// SPDX-License-Identifier: Apache-2.0
#include "base/processors.h"

#include <filesystem>
#include <fstream>
#include <sched.h>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace koho {
namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(Processors, TheLeastLimitOfAGroupAndThoseAboveItCounts) {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path& root = directory.path();
  const std::string group = "0::/pod/container\n";
  EXPECT_EQ(cgroup_processors(group, root), 0) << "no limit anywhere";
  write(root / "pod/container/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_processors(group, root), 0);
  write(root / "pod/container/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_processors(group, root), 4);
  write(root / "pod/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_processors(group, root), 2) << "one and a half";
  write(root / "cpu.max", "20000 100000\n");
  EXPECT_EQ(cgroup_processors(group, root), 1);
}

TEST(Processors, VersionOneHasTwoFiles) {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path& root = directory.path();
  const std::string group = "5:memory:/a\n4:cpu,cpuacct:/a/b\n";
  write(root / "cpu/a/b/cpu.cfs_quota_us", "-1\n");
  write(root / "cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_processors(group, root), 0);
  write(root / "cpu/a/b/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(cgroup_processors(group, root), 3);
  write(root / "cpu/a/cpu.cfs_quota_us", "not a number");
  EXPECT_EQ(cgroup_processors(group + "nonsense\n", root), 3);
}

TEST(Processors, TheAffinityMaskCounts) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_processors(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(available_processors(), CPU_COUNT(&before));
}

}  // namespace
}  // namespace koho
