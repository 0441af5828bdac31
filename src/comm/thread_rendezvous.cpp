// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_rendezvous.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>

namespace koho {
namespace {

/// What the threads share. A round ends when every rank has written its part, and the next begins
/// when every rank has read all parts.
class Meeting {
 public:
  Meeting(std::int64_t ranks, std::chrono::milliseconds timeout)
      : parts_(static_cast<std::size_t>(ranks)), timeout_(timeout) {}

  Status exchange(std::size_t rank, std::span<const std::byte> mine, std::span<std::byte> all) {
    Part& part = parts_[rank];
    std::ranges::copy(mine, part.bytes.begin());
    part.size = mine.size();
    KOHO_TRY(meet());
    const bool equal =
        std::ranges::all_of(parts_, [&](const Part& p) { return p.size == mine.size(); });
    auto to = all.begin();
    for (const Part& p : parts_)
      if (equal) to = std::copy_n(p.bytes.begin(), mine.size(), to);
    KOHO_TRY(meet());  // all ranks have read the parts
    if (equal) return {};
    return make_error(ErrorCode::internal, "the ranks disagree on how many bytes they exchange");
  }

  void give_up() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

 private:
  struct Part {
    std::array<std::byte, Rendezvous::kBytesMax> bytes;
    std::size_t size = 0;
  };

  Status meet() {
    std::unique_lock lock(mutex_);
    const std::int64_t round = round_;
    if (!broken_ && ++arrived_ == parts_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return {};
    }
    if (!broken_ &&
        !changed_.wait_for(lock, timeout_, [&] { return broken_ || round_ != round; })) {
      broken_ = true;
      changed_.notify_all();
    }
    if (round_ != round) return {};
    return make_error(ErrorCode::unavailable, "a rank left, or did not come within {} ms",
                      timeout_.count());
  }

  std::vector<Part> parts_;  // by rank; written and read between different meet()s
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0;
  std::int64_t round_ = 0;
  bool broken_ = false;
};

class ThreadRendezvous final : public Rendezvous {
 public:
  ThreadRendezvous(std::shared_ptr<Meeting> meeting, std::int64_t rank, std::int64_t ranks)
      : meeting_(std::move(meeting)), rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }

  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (mine.size() > kBytesMax || all.size() != mine.size() * static_cast<std::size_t>(ranks_))
      return make_error(ErrorCode::invalid_argument,
                        "a rank gives at most {} bytes and gets as many of each rank, found {} of "
                        "its own and {} of {} ranks",
                        kBytesMax, mine.size(), all.size(), ranks_);
    return meeting_->exchange(static_cast<std::size_t>(rank_), mine, all);
  }

  void give_up() override { meeting_->give_up(); }

 private:
  std::shared_ptr<Meeting> meeting_;
  std::int64_t rank_;
  std::int64_t ranks_;
};

}  // namespace

std::vector<std::unique_ptr<Rendezvous>> make_thread_rendezvous(std::int64_t ranks,
                                                                std::chrono::milliseconds timeout) {
  const auto meeting = std::make_shared<Meeting>(ranks, timeout);
  std::vector<std::unique_ptr<Rendezvous>> all;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    all.push_back(std::make_unique<ThreadRendezvous>(meeting, rank, ranks));
  return all;
}

}  // namespace koho
