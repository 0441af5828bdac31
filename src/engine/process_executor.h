// SPDX-License-Identifier: Apache-2.0
// Ranks as worker processes: a rank that dies, hangs or breaks its device takes neither the front
// nor a request with it. This process opens no device. A thread of its own starts, watches over and
// ends the processes, so that the engine's thread waits for none of it longer than it wants to.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/executor.h"
#include "engine/worker_group.h"
#include "plan/flat_result.h"

namespace koho {

struct ProcessExecutorSettings {
  WorkerGroupSettings group;
  LoadProgress* progress = nullptr;  // of the first load; may be null. Outlives the executor
};

class ProcessExecutor final : public Executor {
 public:
  /// Starts the processes and waits until all have opened their device and the model. Errors: those
  /// of the ranks, with their number; not_found (no program).
  static Result<std::unique_ptr<ProcessExecutor>> open(ProcessExecutorSettings settings);
  ProcessExecutor(const ProcessExecutor&) = delete;
  ProcessExecutor& operator=(const ProcessExecutor&) = delete;
  /// Ends the processes.
  ~ProcessExecutor() override;

  /// What the ranks' devices had before anything was loaded.
  const std::vector<DeviceReport>& devices() const { return devices_; }
  /// Loads the model on all ranks; the executor is ready afterwards. `task.bounds` has a partition
  /// for each rank, or one. Errors: those of the ranks.
  Status load(const LoadTask& task);

  std::span<std::byte> plan_space() override;
  Status submit(std::size_t bytes) override;
  Status send_masks() override;
  Status collect(StepResult& result, std::int64_t timeout_us) override;
  Status recover(std::int64_t timeout_us) override;
  Status check() override;

  /// The ranks' processes as of now; empty while they are started anew. Threads: any.
  std::vector<pid_t> processes() const;

 private:
  enum class Job : std::uint8_t { none, open, load, restart, end };

  explicit ProcessExecutor(ProcessExecutorSettings settings);
  /// Lets the supervisor do a job and waits for it. Errors: deadline_exceeded: it is under way.
  Status run(Job job, std::int64_t timeout_us);
  void supervise();
  Status carry_out(Job job);
  Status open_group();
  Status load_group(LoadProgress* progress);
  void forget_steps();
  /// Reads what ranks have answered to the oldest step. Errors: a rank's own; internal.
  Status read_answers();

  ProcessExecutorSettings settings_;
  std::vector<DeviceReport> devices_;
  LoadTask task_;
  RowOwners owners_ = RowOwners::all_ranks;

  // Of the engine's thread, but for the supervisor's while a job is under way.
  std::unique_ptr<WorkerGroup> group_;
  bool loaded_ = false;
  std::uint64_t submitted_ = 0;  // steps
  std::uint64_t collected_ = 0;
  std::array<std::int64_t, Worker::kStepsInFlightMax> plan_steps_{};  // as the plans call them
  std::vector<std::uint8_t> answered_;                                // by rank, of the oldest step
  std::vector<Status> statuses_;
  std::vector<StepResult> results_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Job job_ = Job::none;
  bool job_done_ = false;
  Status job_status_;
  std::vector<pid_t> processes_;
  std::atomic<bool> cancelled_{false};
  std::thread supervisor_;  // last: it uses the others
};

}  // namespace koho
