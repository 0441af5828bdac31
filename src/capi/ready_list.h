// SPDX-License-Identifier: Apache-2.0
// The requests that have events to read: the engine's thread adds them, poll_requests takes them.
// Each request's slot is in the list at most once, so the list has the size of the request table
// and never grows.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace koho::capi {

/// Threads: any.
class ReadyList {
 public:
  explicit ReadyList(std::size_t slots) : ring_(slots), listed_(slots) {}

  void add(std::uint32_t slot);
  /// The next one. Waits up to `timeout_us` for it, without end if that is negative; nullopt: none
  /// came, or the list is closed.
  std::optional<std::uint32_t> take(std::int64_t timeout_us);
  /// Ends all waiting.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::uint32_t> ring_;
  std::vector<bool> listed_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace koho::capi
