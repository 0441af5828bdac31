// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs as processes, whose buffers reach each other through CUDA IPC: every collective,
// round after round, against values that a rank can compute alone. Processes that share a GPU
// without MPS take turns, milliseconds a collective, so rounds are few. KOHO_TEST_DEVICES names the
// GPUs, KOHO_TEST_ROUNDS the rounds.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/cuda/communicator_rounds.h"
#include "tests/support/environment.h"

namespace koho::testing {
namespace {

/// A rendezvous in memory that forked processes share.
struct SharedMeeting {
  std::atomic<std::int64_t> arrived{0};
  std::atomic<std::int64_t> round{0};
  std::atomic<bool> broken{false};
  std::byte parts[8][Rendezvous::kBytesMax];
};

class ProcessRendezvous final : public Rendezvous {
 public:
  ProcessRendezvous(SharedMeeting& meeting, std::int64_t rank, std::int64_t ranks)
      : meeting_(&meeting), rank_(rank), ranks_(ranks) {}
  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::ranges::copy(mine, meeting_->parts[rank_]);
    KOHO_TRY(meet());
    for (std::int64_t rank = 0; rank < ranks_; ++rank)
      std::copy_n(meeting_->parts[rank], mine.size(),
                  all.data() + static_cast<std::size_t>(rank) * mine.size());
    return meet();
  }
  void give_up() override { meeting_->broken = true; }

 private:
  Status meet() {
    const std::int64_t round = meeting_->round;
    if (meeting_->arrived.fetch_add(1) + 1 == ranks_) {
      meeting_->arrived = 0;
      ++meeting_->round;
    }
    while (meeting_->round == round && !meeting_->broken) sched_yield();
    return meeting_->round != round ? Status()
                                    : make_error(ErrorCode::unavailable, "a rank has left");
  }
  SharedMeeting* meeting_;
  std::int64_t rank_;
  std::int64_t ranks_;
};

class CommunicatorProcesses : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(CommunicatorProcesses, EveryCollectiveIsRightRoundAfterRound) {
  const char* list = std::getenv("KOHO_TEST_DEVICES");
  if (list == nullptr) GTEST_SKIP() << "KOHO_TEST_DEVICES names no GPU";
  const std::int64_t ranks = GetParam();
  const std::int64_t named = 1 + std::count(list, list + std::strlen(list), ',');
  if (named > 1 && named < ranks) GTEST_SKIP() << "fewer GPUs than ranks";
  const auto rounds = static_cast<std::int64_t>(number_from_environment("KOHO_TEST_ROUNDS", 20, 1));
  void* memory = mmap(nullptr, sizeof(SharedMeeting), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* meeting = new (memory) SharedMeeting{};
  std::vector<pid_t> children;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();  // this process never opens CUDA
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ProcessRendezvous rendezvous(*meeting, rank, ranks);
      const Status status = run_rounds(rendezvous, rounds);
      if (!status.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank),
                     status.error().message.c_str());
        rendezvous.give_up();
      }
      _exit(status.ok() && !HasFailure() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  munmap(memory, sizeof(SharedMeeting));
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         CommunicatorProcesses,
                         ::testing::Values(2, 4, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace koho::testing
