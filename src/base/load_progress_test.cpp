// SPDX-License-Identifier: Apache-2.0
#include "base/load_progress.h"

#include <gtest/gtest.h>

namespace koho {
namespace {

class HandClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now; }
  std::int64_t now = 5'000'000;
};

TEST(LoadProgress, TellsRateAndTimeLeft) {
  HandClock clock;
  LoadProgress progress(clock);
  EXPECT_EQ(progress.now().bytes_total, 0);
  EXPECT_EQ(progress.now().fraction(), 0.0);
  clock.now += 60'000'000;  // files are read; nothing moves yet
  progress.expect(6'000'000'000);
  clock.now += 1'000'000;
  EXPECT_LT(progress.now().left_s, 0.0);
  progress.expect(2'000'000'000);  // another rank's
  clock.now += 1'000'000;
  progress.arrived(2'000'000'000);
  const LoadProgress::Now now = progress.now();
  EXPECT_EQ(now.bytes_total, 8'000'000'000);
  EXPECT_EQ(now.bytes_done, 2'000'000'000);
  EXPECT_DOUBLE_EQ(now.gb_per_s, 1.0);
  EXPECT_DOUBLE_EQ(now.left_s, 6.0);
  EXPECT_DOUBLE_EQ(now.fraction(), 0.25);
}

TEST(LoadProgress, RanksCountTogetherInSharedCounters) {
  HandClock clock;
  LoadProgress::Counters counters;
  LoadProgress first(clock, counters), second(clock, counters);
  first.expect(3);
  second.expect(5);
  second.arrived(4);
  EXPECT_EQ(first.now().bytes_total, 8);
  EXPECT_EQ(first.now().bytes_done, 4);
}

}  // namespace
}  // namespace koho
