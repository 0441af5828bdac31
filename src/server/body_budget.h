// SPDX-License-Identifier: Apache-2.0
// How many bytes of request bodies the server holds at once. A body counts from its first byte
// until its prompt is with the engine; then the prompt's token ids count until the answer ends.
#pragma once

#include <atomic>
#include <cstddef>
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

  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// More than three quarters are in use: bodies must arrive faster.
  bool is_scarce() const { return bytes() > bytes_max_ / 4 * 3; }

 private:
  friend class BodyShare;
  bool take(std::size_t more, std::size_t whole);
  void give_back(std::size_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::size_t bytes_max_;
  std::atomic<std::size_t> bytes_{0};
};

/// The part of the budget that one body has; given back with it.
class BodyShare {
 public:
  BodyShare() = default;
  explicit BodyShare(BodyBudget& budget) : budget_(&budget) {}
  ~BodyShare() { resize(0); }
  BodyShare(BodyShare&& other) noexcept
      : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&& other) noexcept {
    resize(0);
    budget_ = other.budget_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  /// False: the budget has no room for so many bytes; the share stays as it is.
  [[nodiscard]] bool grow(std::size_t bytes) {
    if (budget_ == nullptr || bytes <= bytes_) return true;
    if (!budget_->take(bytes - bytes_, bytes)) return false;
    bytes_ = bytes;
    return true;
  }
  /// Gives back what is beyond `bytes`.
  void resize(std::size_t bytes) {
    if (budget_ == nullptr || bytes >= bytes_) return;
    budget_->give_back(bytes_ - bytes);
    bytes_ = bytes;
  }

 private:
  BodyBudget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

inline bool BodyBudget::take(std::size_t more, std::size_t whole) {
  const std::size_t most = whole <= kSmallBytesMax ? bytes_max_ : bytes_max_ / 8 * 7;
  std::size_t before = bytes_.load(std::memory_order_relaxed);
  do {
    if (before + more > most) return false;
  } while (!bytes_.compare_exchange_weak(before, before + more, std::memory_order_relaxed));
  return true;
}

}  // namespace koho::server
