// SPDX-License-Identifier: Apache-2.0
// Threads for work that would block an I/O thread: large bodies, grammars. Clients take turns, so
// that nobody waits behind all that another has sent. The queue is bounded; submit() returns false
// when it is full, and to a client that has as much in it as is left.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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

  /// False: the queue is full for this client.
  [[nodiscard]] bool submit(std::uint64_t client, std::function<void()> work);

 private:
  void run();

  std::size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint64_t, std::deque<std::function<void()>>> queues_;  // by client; none is empty
  std::deque<std::uint64_t> turns_;                                    // the clients that have one
  std::size_t queued_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace koho::server
