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

bool WorkPool::submit(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= queue_max_) return false;
    queue_.push_back(std::move(work));
  }
  arrived_.notify_one();
  return true;
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace koho::server
