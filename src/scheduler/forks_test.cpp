// SPDX-License-Identifier: Apache-2.0
// What many forks of one sequence cost: memory, and time in the lists of those that wait.
#include "tests/support/scheduler_harness.h"
#include "tests/support/thread_time.h"

namespace koho {
namespace {

/// 128 choices of 131,000 tokens took 64 MB, and the engine's thread 70 ms.
TEST(SchedulerForks, ForksHaveTokensOfTheirOwnWhenTheyAreAdmitted) {
  Harness harness;
  const SequenceId parent = harness.submit(11, 1);
  const std::vector<Token> prompt = harness.scheduler.find(parent)->tokens;
  SequenceRequest request;
  request.prompt = prompt;
  request.completion_max = 6;
  request.fork_of = parent;
  std::vector<SequenceId> forks;
  for (int i = 0; i < 5; ++i) forks.push_back(*harness.scheduler.submit(request));
  harness.step();
  EXPECT_EQ(harness.scheduler.find(parent), nullptr);
  for (const SequenceId id : forks) {
    const Sequence& fork = *harness.scheduler.find(id);
    EXPECT_EQ(fork.state, SequenceState::waiting);
    EXPECT_TRUE(fork.tokens.empty());
    EXPECT_EQ(fork.known(), 11);
  }
  harness.step();
  for (const SequenceId id : forks) {
    const Sequence& fork = *harness.scheduler.find(id);
    if (fork.state != SequenceState::running) continue;
    EXPECT_EQ(std::vector(fork.tokens.begin(), fork.tokens.begin() + 11), prompt);
  }
  harness.drain();
}

/// Each of their forks walked past all that waited: 2,500 of them past 5,000 in 45 ms.
TEST(SchedulerForks, ForksFindTheirPlaceBehindManyOlderOnes) {
  const auto seconds_of_release = [](int older) {
    Limits limits = small_limits();
    limits.live_max = 25'000;
    limits.sequences_max = 1;
    Harness harness(limits);
    std::vector<Token> prompt(3, 1);
    SequenceRequest request;
    request.prompt = prompt;
    request.completion_max = 1;
    for (int i = 0; i < older; ++i) EXPECT_TRUE(harness.scheduler.submit(request).ok());
    const SequenceId parent = *harness.scheduler.submit(request);
    request.fork_of = parent;
    for (int i = 0; i < 3000; ++i) EXPECT_TRUE(harness.scheduler.submit(request).ok());
    request.fork_of = kNoSequence;
    EXPECT_TRUE(harness.scheduler.submit(request).ok());  // younger than all
    const double begin = testing::thread_seconds();
    harness.scheduler.finish(parent);
    const double seconds = testing::thread_seconds() - begin;
    EXPECT_EQ(harness.scheduler.waiting(), older + 3001);
    return seconds;
  };
  const double few = seconds_of_release(10);
  EXPECT_LT(seconds_of_release(20'000), 50 * few);
}

}  // namespace
}  // namespace koho
