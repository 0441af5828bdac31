// SPDX-License-Identifier: Apache-2.0
// Fork-join over a few threads: the caller works too, idle threads spin briefly and then sleep.
// On a busy machine a thread that loses its core in mid-task holds all others up. There the workers
// take turns with whoever wants their cores, so that they hold no task while another runs, and
// leave the caller its core. Where that does not help, the caller works alone for a while. Owns its
// threads; refuses nesting (a body must not call run).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "cpu/core_sharing.h"

namespace koho {

/// Threads: run() by one thread at a time. Nothing is allocated after the constructor while nobody
/// else wants the cores.
class ThreadPool {
 public:
  /// `threads` counts the caller: threads - 1 are started. Requires: threads >= 1.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return threads_; }

  /// Calls body(task, worker) once for each task in 0..tasks-1, worker in 0..threads()-1, and
  /// returns when all are done. Each worker has a run of neighbouring tasks and takes them in
  /// order, so that memory laid out in the order of the tasks is read from front to back; who has
  /// finished takes the last tasks of others, so a thread that is asleep holds nobody up, and a
  /// preempted one only with the task that it has.
  template <typename Body>
  void run(std::int64_t tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    if (tasks == 1 || workers_.empty()) {
      for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
      return;
    }
    run_erased(
        tasks,
        [](void* context, std::int64_t task, int worker) {
          (*static_cast<Plain*>(context))(task, worker);
        },
        &body);
  }

 private:
  struct Idle {};
  ThreadPool(int threads, Idle);  // starts none

  using Call = void (*)(void* context, std::int64_t task, int worker);

  /// A worker's tasks that nobody has taken: the first in the upper half, the end in the lower.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> untaken{0};
  };

  void run_erased(std::int64_t tasks, Call call, void* context);
  /// Adds a job to what is known of the threads' gain: the caller had `own` of its tasks, which
  /// took `own_ns`. Decides now and then how the threads go on.
  void judge(std::int64_t tasks,
             std::int64_t own,
             std::int64_t own_ns,
             std::int64_t end,
             std::int64_t begin);
  /// After a job of `ns` in turns: leaves a core that others took from the caller.
  void look_at_core(std::int64_t ns);
  void work(int worker);
  /// Takes a task of the running job, if one is left, and runs it.
  bool take_one(int worker);
  bool take_from(Share& share, bool own, std::int64_t& task);

  // A thread that takes a task by compare-and-swap knows that its job is alive: the job ends only
  // when done_ says so, and call_ and context_ were set before any of its tasks could be taken.
  const int threads_;
  std::unique_ptr<Share[]> shares_;  // by worker
  alignas(64) std::atomic<std::int64_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> jobs_{0};  // sleepers wait for it to change
  std::atomic<bool> stopping_{false};
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::int64_t tasks_ = 0;
  // The caller's, in ns: how long the latest jobs took, its own tasks of them, and all would have
  // taken the caller alone.
  std::int64_t together_ns_ = 0;
  std::int64_t own_ns_ = 0;
  double alone_ns_ = 0.0;
  RunDelay caller_delay_;
  std::int64_t own_delay_ns_ = 0;     // of the caller before the time that is judged …
  std::int64_t worker_delay_ns_ = 0;  // … and of the workers
  std::int64_t unlooked_ns_ = 0;  // time of jobs since the caller looked whether it lost its core …
  std::int64_t look_ns_ = 0;      // … which it does after so much
  std::int64_t looked_delay_ns_ = 0;
  int disagreeing_ = 0;  // times in a row that spoke for another way to go on
  std::int64_t alone_until_ns_ = 0;
  std::int64_t alone_for_ns_ = 0;  // the latest time alone; 0: taking turns was worth it since
  // How the workers work, and what they tell.
  std::atomic<bool> in_turns_{false};
  std::atomic<int> caller_core_{-1};
  std::atomic<std::int64_t> workers_delay_ns_{0};
  std::vector<std::thread> workers_;
};

}  // namespace koho
