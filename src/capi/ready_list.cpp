// SPDX-License-Identifier: Apache-2.0
// A ring under a lock, with a flag a slot.
#include "capi/ready_list.h"

#include <chrono>

namespace koho::capi {

void ReadyList::add(std::uint32_t slot) {
  {
    const std::lock_guard lock(mutex_);
    if (listed_[slot]) return;
    listed_[slot] = true;
    ring_[(head_ + size_) % ring_.size()] = slot;
    ++size_;
  }
  arrived_.notify_one();
}

std::optional<std::uint32_t> ReadyList::take(std::int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  const auto something = [this] { return size_ > 0 || closed_; };
  if (timeout_us < 0)
    arrived_.wait(lock, something);
  else
    arrived_.wait_for(lock, std::chrono::microseconds(timeout_us), something);
  if (size_ == 0 || closed_) return std::nullopt;
  const std::uint32_t slot = ring_[head_];
  head_ = (head_ + 1) % ring_.size();
  --size_;
  listed_[slot] = false;
  return slot;
}

void ReadyList::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

}  // namespace koho::capi
