// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel_times.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace koho {
namespace {

using Kernels = std::vector<KernelTime>;

const KernelSummary::Row& row_of(const KernelSummary& summary, const std::string& name) {
  static const KernelSummary::Row kNone;
  for (const KernelSummary::Row& row : summary.rows)
    if (row.name == name) return row;
  ADD_FAILURE() << "no row " << name;
  return kNone;
}

TEST(KernelTimes, OfNothingAreZero) {
  const KernelSummary summary = summarise({});
  EXPECT_EQ(summary.count, 0);
  EXPECT_EQ(summary.sum_ns, 0);
  EXPECT_EQ(summary.busy_ns, 0);
  EXPECT_EQ(summary.idle_ns, 0);
  EXPECT_TRUE(summary.rows.empty());
}

TEST(KernelTimes, GapsBetweenKernelsAreIdleAndBelongToTheOneThatFollows) {
  const KernelSummary summary =
      summarise(Kernels{{"a", 1000, 1100}, {"b", 1130, 1150}, {"a", 1157, 1200}});
  EXPECT_EQ(summary.count, 3);
  EXPECT_EQ(summary.sum_ns, 100 + 20 + 43);
  EXPECT_EQ(summary.busy_ns, 163);
  EXPECT_EQ(summary.idle_ns, 30 + 7);
  EXPECT_EQ(row_of(summary, "a").count, 2);
  EXPECT_EQ(row_of(summary, "a").idle_ns, 7);
  EXPECT_EQ(row_of(summary, "b").idle_ns, 30);
}

TEST(KernelTimes, KernelsThatTouchLeaveNoGap) {
  const KernelSummary summary = summarise(Kernels{{"a", 0, 10}, {"b", 10, 25}});
  EXPECT_EQ(summary.busy_ns, 25);
  EXPECT_EQ(summary.idle_ns, 0);
}

TEST(KernelTimes, WaitingForTheOneBeforeCountsInTheSumButNotTwiceAsBusy) {
  // b is launched while a runs, and works for 5 after a's end only.
  const KernelSummary summary = summarise(Kernels{{"a", 0, 100}, {"b", 60, 105}});
  EXPECT_EQ(summary.sum_ns, 145);
  EXPECT_EQ(summary.busy_ns, 105);
  EXPECT_EQ(summary.idle_ns, 0);
  EXPECT_EQ(row_of(summary, "a").busy_ns, 100);
  EXPECT_EQ(row_of(summary, "b").busy_ns, 5);
  EXPECT_EQ(row_of(summary, "b").sum_ns, 45);
}

TEST(KernelTimes, AKernelInsideAnotherAddsNothingAndCoversNoLess) {
  const KernelSummary summary =
      summarise(Kernels{{"long", 0, 100}, {"inside", 20, 30}, {"after", 110, 120}});
  EXPECT_EQ(row_of(summary, "inside").busy_ns, 0);
  EXPECT_EQ(row_of(summary, "after").idle_ns, 10);  // since `long`, not since `inside`
  EXPECT_EQ(summary.busy_ns, 110);
}

TEST(KernelTimes, RowsComeLongestBusyFirst) {
  const KernelSummary summary =
      summarise(Kernels{{"short", 0, 3}, {"long", 3, 90}, {"middle", 90, 120}});
  ASSERT_EQ(summary.rows.size(), 3U);
  EXPECT_EQ(summary.rows[0].name, "long");
  EXPECT_EQ(summary.rows[1].name, "middle");
  EXPECT_EQ(summary.rows[2].name, "short");
}

TEST(KernelTimes, OfAnyKernelsAreWhatCountingEveryNanosecondSays) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    Kernels kernels;
    std::vector<bool> busy(400, false);
    std::int64_t sum = 0;
    std::int64_t first = 400;
    std::int64_t last = 0;
    const std::size_t count = 1 + random() % 12;
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(random() % 300);
      const auto end = begin + static_cast<std::int64_t>(random() % 60);
      kernels.push_back({std::string(1, static_cast<char>('a' + random() % 3)), begin, end});
      for (std::int64_t at = begin; at < end; ++at) busy[static_cast<std::size_t>(at)] = true;
      sum += end - begin;
      first = std::min(first, begin);
      last = std::max(last, end);
    }
    const KernelSummary summary = summarise(kernels);
    const std::int64_t busy_ns = std::count(busy.begin(), busy.end(), true);
    EXPECT_EQ(summary.sum_ns, sum);
    EXPECT_EQ(summary.busy_ns, busy_ns);
    EXPECT_EQ(summary.idle_ns, last - first - busy_ns);
    EXPECT_EQ(summary.count, static_cast<std::int64_t>(count));
  }
}

}  // namespace
}  // namespace koho
