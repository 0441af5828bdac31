// SPDX-License-Identifier: Apache-2.0
// The ring of events between the engine's thread and one reader, under one short lock.
#include "engine/output_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace koho {

OutputStream::OutputStream(std::size_t capacity,
                           std::size_t alternatives,
                           std::function<void()> on_ready,
                           std::function<void(OutputStream&)> on_room)
    : ring_(capacity), on_ready_(std::move(on_ready)), on_room_(std::move(on_room)) {
  // So that no step allocates: a token's text is mostly shorter than this.
  constexpr std::size_t kTextReserved = 32;
  for (OutputEvent& event : ring_) {
    event.top.reserve(alternatives);
    event.text.reserve(kTextReserved);
  }
}

void OutputStream::serve_on_demand() {
  const std::lock_guard lock(mutex_);
  on_demand_ = true;
  granted_ = 1;
}

OutputStream::Read OutputStream::poll(OutputEvent& event) {
  bool room = false;
  Read read = Read::nothing;
  {
    const std::lock_guard lock(mutex_);
    read = poll_locked(event, room);
  }
  if (room && on_room_) on_room_(*this);
  return read;
}

OutputStream::Read OutputStream::wait(OutputEvent& event, std::int64_t timeout_us) {
  bool room = false;
  Read read = Read::nothing;
  {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::microseconds(timeout_us),
                      [this] { return size_ > 0 || closed_; });
    read = poll_locked(event, room);
  }
  if (room && on_room_) on_room_(*this);
  return read;
}

OutputStream::Read OutputStream::poll_locked(OutputEvent& event, bool& room) {
  if (size_ == 0) return closed_ ? Read::done : Read::nothing;
  std::swap(event, ring_[head_]);
  head_ = (head_ + 1) % ring_.size();
  --size_;
  // Half a ring of room beyond what is needed, so that a slow reader is not paused at every token.
  const std::size_t wanted = std::min(ring_.size(), room_wanted_ + ring_.size() / 2);
  if (room_wanted_ > 0 && !on_demand_ && ring_.size() - size_ >= wanted) {
    room_wanted_ = 0;
    room = true;
  }
  return Read::event;
}

void OutputStream::push(OutputEvent& event) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    KOHO_CHECK(!closed_);
    KOHO_CHECK_LT(size_, ring_.size());
    was_empty = size_ == 0;
    std::swap(event, ring_[(head_ + size_) % ring_.size()]);
    ++size_;
    granted_ -= granted_ > 0 ? 1U : 0U;
  }
  if (!was_empty) return;
  arrived_.notify_one();
  if (on_ready_) on_ready_();
}

void OutputStream::close(Summary summary) {
  std::function<void(const Summary&)> on_end;
  {
    const std::lock_guard lock(mutex_);
    KOHO_CHECK(!closed_);
    summary_ = std::move(summary);
    closed_ = true;
    on_end = std::exchange(on_end_, nullptr);
  }
  arrived_.notify_one();
  if (on_ready_) on_ready_();
  // leave() calls it from now on.
  if (on_end) on_end(summary_);
}

void OutputStream::leave(std::function<void(const Summary&)> on_end) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      on_end_ = std::move(on_end);
      return;
    }
  }
  on_end(summary_);
}

bool OutputStream::pause_without(std::size_t events) {
  const std::lock_guard lock(mutex_);
  const std::size_t room = ring_.size() - size_;
  if ((on_demand_ ? std::min(room, granted_) : room) >= events) return false;
  room_wanted_ = events;
  return true;
}

void OutputStream::grant() {
  const std::lock_guard lock(mutex_);
  granted_ += on_demand_ ? 1U : 0U;
}

std::size_t OutputStream::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

bool OutputStream::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace koho
