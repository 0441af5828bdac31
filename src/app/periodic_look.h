// SPDX-License-Identifier: Apache-2.0
// A thread that looks at something now and then while this lives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace koho::app {

class PeriodicLook {
 public:
  /// Calls `look` on its own thread every `interval`; not any more once the destructor has ended.
  PeriodicLook(std::chrono::milliseconds interval, std::function<void()> look)
      : look_(std::move(look)), thread_([this, interval] {
          std::unique_lock lock(mutex_);
          while (!ended_.wait_for(lock, interval, [this] { return done_; })) look_();
        }) {}
  PeriodicLook(const PeriodicLook&) = delete;
  PeriodicLook& operator=(const PeriodicLook&) = delete;
  ~PeriodicLook() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

 private:
  std::function<void()> look_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;  // last: it reads the others
};

}  // namespace koho::app
