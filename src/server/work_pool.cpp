// SPDX-License-Identifier: Apache-2.0
#include "server/work_pool.h"

#include <algorithm>
#include <chrono>

namespace koho::server {
namespace {

/// Who has used little of late used a quarter of a thread, and no more than this time beyond it.
constexpr std::int64_t kLittleUs = 100'000;
constexpr std::int64_t kQuarter = 4;
/// Of what was used before a job no more than this counts, so that a busy day is forgotten.
constexpr std::int64_t kLateUs = 60'000'000;

}  // namespace

WorkPool::WorkPool(std::int32_t threads, std::size_t queue_max, const Clock& clock)
    : client_threads_(threads), queue_max_(queue_max), clock_(clock) {
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
  const std::int64_t little_us = clock_.now_us() + kQuarter * kLittleUs;
  return std::ranges::find_if(turns_, [&](std::uint64_t id) {
    const Client& client = clients_.find(id)->second;
    return running_ < client_threads_ || (client.running == 0 && client.even_us <= little_us);
  });
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    auto turn = turns_.end();
    const auto ready = [&] { return stopping_ || (turn = next()) != turns_.end(); };
    // Who waits may get the last thread as time passes.
    while (!ready()) {
      if (turns_.empty()) {
        arrived_.wait(lock);
      } else {
        arrived_.wait_for(lock, std::chrono::microseconds(kLittleUs));
      }
    }
    if (stopping_) return;
    const auto client = clients_.find(*turn);
    turns_.erase(turn);
    Client& taken = client->second;
    std::function<void()> work = std::move(taken.queue.front());
    taken.queue.pop_front();
    --queued_;
    ++taken.running;
    ++running_;
    if (!taken.queue.empty()) turns_.push_back(client->first);
    lock.unlock();
    const std::int64_t began_us = clock_.now_us();
    work();
    work = {};
    const std::int64_t now_us = clock_.now_us();
    lock.lock();
    --taken.running;
    --running_;
    // Those that came while it worked have their turn before its next one.
    if (const auto turn_again = std::ranges::find(turns_, client->first);
        turn_again != turns_.end())
      std::rotate(turn_again, turn_again + 1, turns_.end());
    taken.even_us =
        std::clamp(taken.even_us, began_us, began_us + kLateUs) + kQuarter * (now_us - began_us);
    std::erase_if(clients_, [&](const auto& one) {
      return one.second.running == 0 && one.second.queue.empty() && one.second.even_us <= now_us;
    });
  }
}

}  // namespace koho::server
