// SPDX-License-Identifier: Apache-2.0
// The worker processes of one start, one for each rank, with the memory that they share with the
// front. When one of them fails, all are ended and a new group takes their place: nothing of the
// old one is used again. Owned by ProcessExecutor, which decides when.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/load_progress.h"
#include "base/shared_memory.h"
#include "worker/rank_memory.h"

namespace koho {

struct WorkerGroupSettings {
  std::string program;  // a koho of this build
  WorkerTask task;
  std::int64_t ranks = 1;
  /// A rank that has not run for so long is stopped (SIGSTOP), or its machine part is gone. Counts
  /// only time in which this process ran.
  std::int64_t silence_us_max = 10'000'000;
};

class WorkerGroup {
 public:
  /// Starts the processes. They end when the calling thread ends. Errors: those of
  /// ChildProcess::spawn and of the memory.
  static Result<std::unique_ptr<WorkerGroup>> spawn(const WorkerGroupSettings& settings);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  /// Kills what lives.
  ~WorkerGroup();

  /// Waits until every rank is at `stage`. Adds what they load to `progress`, which may be null.
  /// Errors: that of the first rank that failed, with its number; device_error (a process ended or
  /// is stopped); cancelled.
  Status wait_for(RankStage stage, LoadProgress* progress, const std::atomic<bool>& cancelled);
  /// Requires: all ranks are at `opened`.
  const DeviceReport& device(std::int64_t rank) const { return words(rank).device; }
  /// Tells the sizes; the ranks load.
  Status load(const LoadTask& task);

  // ---- steps; requires: all ranks are `ready`
  std::span<std::byte> plan_space(std::uint64_t step) {
    return layout_.plan(step_memory_.bytes(), step);
  }
  void submit(std::uint64_t step, std::size_t bytes);
  void send_masks(std::uint64_t steps);
  bool has_answered(std::int64_t rank, std::uint64_t step) const {
    return words(rank).answered.load(std::memory_order_acquire) > step;
  }
  /// Copies the answer of a step, which has_answered; the span lives until the next call.
  std::span<const std::byte> answer(std::int64_t rank, std::uint64_t step);
  /// Waits until a rank wrote or ended, `timeout_us` at most; whether one wrote.
  bool wait(std::int64_t timeout_us);
  /// Whether all ranks are there. Returns at once. Errors: device_error.
  Status check();

  /// Lets idle ranks end by themselves for `timeout_ms` at most.
  void stop(int timeout_ms);
  /// Kills all. Errors: device_error: one of them does not end (its driver hangs).
  Status kill(int timeout_ms);

  std::int64_t ranks() const { return std::ssize(ranks_); }
  pid_t pid(std::int64_t rank) const {
    return ranks_[static_cast<std::size_t>(rank)].process.pid();
  }

 private:
  /// The front's view of a rank.
  struct Rank {
    ChildProcess process;
    Descriptor wake;
    std::uint64_t beats = 0;
    std::int64_t silent_us = 0;
    std::int64_t load_bytes_total = 0;
    std::int64_t load_bytes_done = 0;
  };

  WorkerGroup() = default;
  const RankWords& words(std::int64_t rank) const {
    return control_->rank[static_cast<std::size_t>(rank)];
  }
  /// The error of a rank that failed to start: a cause rather than what it did to other ranks.
  std::optional<Error> failure() const;
  void wake_all() const;
  void report(LoadProgress& progress);

  std::int64_t silence_us_max_ = 0;
  SteadyClock clock_;
  std::int64_t looked_us_ = 0;
  SharedMemory control_memory_, step_memory_;
  Control* control_ = nullptr;
  StepMemoryLayout layout_;
  Descriptor answered_;
  std::vector<Rank> ranks_;
  std::vector<std::uint64_t> copy_;  // of an answer
};

}  // namespace koho
