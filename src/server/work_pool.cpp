// SPDX-License-Identifier: Apache-2.0
#include "server/work_pool.h"

namespace koho::server {

WorkPool::WorkPool(std::int32_t threads, std::size_t queue_max) : queue_max_(queue_max) {
  for (std::int32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::submit(std::uint64_t client, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(client);
    const std::size_t own = found == queues_.end() ? 0 : found->second.size();
    if (queued_ >= queue_max_ || own >= queue_max_ - queued_) return false;
    if (own == 0) turns_.push_back(client);
    queues_[client].push_back(std::move(work));
    ++queued_;
  }
  arrived_.notify_one();
  return true;
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return stopping_ || queued_ > 0; });
    if (stopping_) return;
    const std::uint64_t client = turns_.front();
    turns_.pop_front();
    const auto queue = queues_.find(client);
    const std::function<void()> work = std::move(queue->second.front());
    queue->second.pop_front();
    --queued_;
    if (queue->second.empty()) {
      queues_.erase(queue);
    } else {
      turns_.push_back(client);
    }
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace koho::server
