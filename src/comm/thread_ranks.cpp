// SPDX-License-Identifier: Apache-2.0
// The group of ranks that are threads: a barrier, and operands that stay where they are.
#include "comm/thread_ranks.h"

#include <condition_variable>
#include <mutex>

#include "comm/host_ranks.h"

namespace koho {

class ThreadRankGroup {
 public:
  ThreadRankGroup(std::int64_t ranks, std::chrono::milliseconds timeout)
      : operands(static_cast<std::size_t>(ranks)),
        arrived_from(static_cast<std::size_t>(ranks),
                     std::vector<std::int64_t>(static_cast<std::size_t>(ranks))),
        ranks_(ranks),
        timeout_(timeout) {}

  std::vector<HostOperand> operands;                    // by rank; stable between two barriers
  std::vector<std::vector<std::int64_t>> arrived_from;  // [to][from]

  /// The barrier: waits until every rank has arrived.
  Status meet() {
    std::unique_lock lock(mutex_);
    if (broken_) return gone();
    const std::int64_t round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
      return {};
    }
    const bool met = all_here_.wait_for(lock, timeout_, [&] { return round_ != round || broken_; });
    if (met && !broken_) return {};
    broken_ = true;
    all_here_.notify_all();
    return gone();
  }

  void give_up() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    all_here_.notify_all();
  }

 private:
  static Error gone() {
    return make_error(ErrorCode::unavailable, "a rank left the group or did not come in time");
  }

  std::mutex mutex_;
  std::condition_variable all_here_;
  std::int64_t ranks_;
  std::chrono::milliseconds timeout_;
  std::int64_t arrived_ = 0;
  std::int64_t round_ = 0;
  bool broken_ = false;
};

namespace {

class ThreadRank final : public HostRankGroup {
 public:
  ThreadRank(std::shared_ptr<ThreadRankGroup> group, std::int64_t rank)
      : group_(std::move(group)), rank_(static_cast<std::size_t>(rank)) {}

  Result<std::span<const HostOperand>> exchange(const HostOperand& mine) override {
    group_->operands[rank_] = mine;
    KOHO_TRY(group_->meet());
    return std::span<const HostOperand>(group_->operands);
  }
  Status meet() override { return group_->meet(); }
  std::span<std::int64_t> arrived_from(std::int64_t to) override {
    return group_->arrived_from[static_cast<std::size_t>(to)];
  }
  void give_up() override { group_->give_up(); }

 private:
  std::shared_ptr<ThreadRankGroup> group_;
  std::size_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::int64_t ranks,
                                                             std::chrono::milliseconds timeout) {
  auto group = std::make_shared<ThreadRankGroup>(ranks, timeout);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    communicators.push_back(make_host_rank(std::make_unique<ThreadRank>(group, rank), rank, ranks));
  return communicators;
}

Result<std::unique_ptr<Communicator>> join_thread_ranks(Rendezvous& rendezvous,
                                                        std::chrono::milliseconds timeout) {
  // Rank 0 makes the group and tells the others, who are in the same process, where it is.
  std::shared_ptr<ThreadRankGroup> group;
  if (rendezvous.rank() == 0)
    group = std::make_shared<ThreadRankGroup>(rendezvous.ranks(), timeout);
  const std::shared_ptr<ThreadRankGroup>* mine = &group;
  std::vector<const std::shared_ptr<ThreadRankGroup>*> all(
      static_cast<std::size_t>(rendezvous.ranks()));
  KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  const std::shared_ptr<ThreadRankGroup> joined = *all[0];
  // Nobody leaves before all have joined.
  KOHO_TRY(rendezvous.all_gather({}, {}));
  return make_host_rank(std::make_unique<ThreadRank>(joined, rendezvous.rank()), rendezvous.rank(),
                        rendezvous.ranks());
}

}  // namespace koho
