// SPDX-License-Identifier: Apache-2.0
// Threads for work that would block an I/O thread: large bodies, grammars. Clients take turns, so
// that nobody waits behind all that another has sent, and one of the threads is kept for those who
// have none and used little of late: several that send much share the others. The queue is bounded;
// submit() returns false when it is full, and to a client that has as much in it as is left.
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

#include "base/clock.h"

namespace koho::server {

class WorkPool {
 public:
  /// `threads`: for one client; there is one more.
  WorkPool(std::int32_t threads, std::size_t queue_max, const Clock& clock);
  /// Drops work that has not started.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  /// False: the queue is full for this client.
  [[nodiscard]] bool submit(std::uint64_t client, std::function<void()> work);

 private:
  struct Client {
    std::deque<std::function<void()>> queue{};
    std::int32_t running = 0;
    std::int64_t even_us = 0;  // when it will have used a quarter of a thread and no more
  };
  void run();
  std::deque<std::uint64_t>::iterator next();

  std::int32_t client_threads_;
  std::size_t queue_max_;
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint64_t, Client> clients_;  // that have work, or used much
  std::deque<std::uint64_t> turns_;          // of those with a queue
  std::size_t queued_ = 0;
  std::int32_t running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace koho::server
