// SPDX-License-Identifier: Apache-2.0
// How many bytes of request bodies the server holds at once. A body counts from its first byte
// until its prompt is with the engine; then the prompt's token ids count until the answer ends.
// Another budget counts answers that their clients do not read. Clients share both: of bodies one
// has at most three times what is left, so three quarters alone, of unread answers what is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace koho::server {

/// Threads: any.
class BodyBudget {
 public:
  /// A body up to this size may use the last eighth of the budget, so that large ones cannot keep
  /// it out.
  static constexpr std::size_t kSmallBytesMax = 256U << 10U;

  explicit BodyBudget(std::size_t bytes_max) : bytes_max_(bytes_max) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  std::size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  /// More than three quarters are in use: bodies must arrive faster.
  bool is_scarce() const { return bytes() > bytes_max_ / 4 * 3; }
  /// Whether the client holds as much as is left.
  bool is_used_up(std::uint64_t client) const {
    const std::lock_guard lock(mutex_);
    const auto found = owned_.find(client);
    return found != owned_.end() && found->second + bytes_ >= bytes_max_;
  }

 private:
  friend class BodyShare;
  bool take(std::uint64_t client, std::size_t more, std::size_t whole);
  void change(std::uint64_t client, std::size_t before, std::size_t now);

  std::size_t bytes_max_;
  mutable std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> owned_;  // none is 0
};

/// The part of the budget that one body has; given back with it.
class BodyShare {
 public:
  BodyShare() = default;
  explicit BodyShare(BodyBudget& budget, std::uint64_t client = 0)
      : budget_(&budget), client_(client) {}
  ~BodyShare() { resize(0); }
  BodyShare(BodyShare&& other) noexcept
      : budget_(other.budget_), client_(other.client_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&& other) noexcept {
    resize(0);
    budget_ = other.budget_;
    client_ = other.client_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  std::size_t bytes() const { return bytes_; }
  /// False: the budget has no room for so many bytes; the share stays as it is.
  [[nodiscard]] bool grow(std::size_t bytes) {
    if (budget_ == nullptr || bytes <= bytes_) return true;
    if (!budget_->take(client_, bytes - bytes_, bytes)) return false;
    bytes_ = bytes;
    return true;
  }
  /// Gives back what is beyond `bytes`.
  void resize(std::size_t bytes) {
    if (bytes < bytes_) hold(bytes);
  }
  /// Takes or gives back, so that it has `bytes`, whether there is room or not.
  void hold(std::size_t bytes) {
    if (budget_ == nullptr || bytes == bytes_) return;
    budget_->change(client_, bytes_, bytes);
    bytes_ = bytes;
  }

 private:
  BodyBudget* budget_ = nullptr;
  std::uint64_t client_ = 0;
  std::size_t bytes_ = 0;
};

inline bool BodyBudget::take(std::uint64_t client, std::size_t more, std::size_t whole) {
  const std::size_t most = whole <= kSmallBytesMax ? bytes_max_ : bytes_max_ / 8 * 7;
  const std::lock_guard lock(mutex_);
  const auto found = owned_.find(client);
  const std::size_t own = found == owned_.end() ? 0 : found->second;
  if (bytes_ + more + (own + more) / 3 > most) return false;
  bytes_ += more;
  owned_[client] = own + more;
  return true;
}

inline void BodyBudget::change(std::uint64_t client, std::size_t before, std::size_t now) {
  const std::lock_guard lock(mutex_);
  bytes_ += now - before;
  const auto found = owned_.try_emplace(client).first;
  if ((found->second += now - before) == 0) owned_.erase(found);
}

}  // namespace koho::server
