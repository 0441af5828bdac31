// SPDX-License-Identifier: Apache-2.0
// Threads for work that would block an I/O thread: large bodies, grammars. The queue is bounded;
// submit() returns false when it is full.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace koho::server {

class WorkPool {
 public:
  WorkPool(std::int32_t threads, std::size_t queue_max);
  /// Drops work that has not started.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  /// False: the queue is full.
  [[nodiscard]] bool submit(std::function<void()> work);

 private:
  void run();

  std::size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace koho::server
