// SPDX-License-Identifier: Apache-2.0
// A few threads for work that would hold up an I/O thread: large bodies, grammars. Its queue is
// bounded; who finds it full is told so.
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
  /// Work that was not begun is dropped.
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
