// SPDX-License-Identifier: Apache-2.0
#include "server/work_pool.h"

#include <algorithm>

namespace koho::server {

WorkPool::WorkPool(std::int32_t threads, std::size_t queue_max)
    : client_threads_(threads), queue_max_(queue_max) {
  for (std::int32_t i = 0; i <= threads; ++i) threads_.emplace_back([this] { run(); });
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
    const auto found = clients_.find(client);
    const std::size_t own = found == clients_.end() ? 0 : found->second.queue.size();
    if (queued_ >= queue_max_ || own >= queue_max_ - queued_) return false;
    if (own == 0) turns_.push_back(client);
    clients_[client].queue.push_back(std::move(work));
    ++queued_;
  }
  arrived_.notify_one();
  return true;
}

/// The client whose turn it is, of those that may have one more thread.
std::deque<std::uint64_t>::iterator WorkPool::next() {
  return std::ranges::find_if(turns_, [this](std::uint64_t client) {
    return clients_.find(client)->second.running < client_threads_;
  });
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    auto turn = turns_.end();
    arrived_.wait(lock, [&] { return stopping_ || (turn = next()) != turns_.end(); });
    if (stopping_) return;
    const auto client = clients_.find(*turn);
    turns_.erase(turn);
    Client& taken = client->second;
    std::function<void()> work = std::move(taken.queue.front());
    taken.queue.pop_front();
    --queued_;
    ++taken.running;
    if (!taken.queue.empty()) turns_.push_back(client->first);
    lock.unlock();
    work();
    work = {};
    lock.lock();
    if (--taken.running == 0 && taken.queue.empty()) clients_.erase(client);
  }
}

}  // namespace koho::server
