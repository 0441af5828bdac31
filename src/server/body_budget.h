// SPDX-License-Identifier: Apache-2.0
// How many bytes of request bodies the server holds at once. A body counts from its first byte
// until its prompt is with the engine; then the prompt's token ids count until the answer ends. A
// large head counts until its request is answered. Another budget counts answers that their clients
// do not read. Clients share both: of bodies one has at most three times what is left, so three
// quarters alone, of unread answers what is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "server/client_shares.h"

namespace koho::server {

/// Threads: any.
class BodyBudget {
 public:
  /// A body up to this size may use the last eighth of the budget, so that large ones cannot keep
  /// it out.
  static constexpr std::size_t kSmallBytesMax = 256U << 10U;

  explicit BodyBudget(std::size_t bytes_max)
      : bytes_max_(bytes_max), shares_(static_cast<std::int64_t>(bytes_max), 3) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  std::size_t bytes() const { return static_cast<std::size_t>(shares_.taken()); }
  /// More than three quarters are in use: bodies must arrive faster.
  bool is_scarce() const { return bytes() > bytes_max_ / 4 * 3; }
  /// Whether the client holds as much as is left.
  bool is_used_up(std::uint64_t client) const { return shares_.is_used_up(client); }

 private:
  friend class BodyShare;
  bool take(std::uint64_t client, std::size_t more, std::size_t whole) {
    const std::size_t reserved = whole <= kSmallBytesMax ? 0 : bytes_max_ - bytes_max_ / 8 * 7;
    return shares_.take(client, static_cast<std::int64_t>(more),
                        static_cast<std::int64_t>(reserved));
  }
  void change(std::uint64_t client, std::size_t before, std::size_t now) {
    shares_.change(client, static_cast<std::int64_t>(now) - static_cast<std::int64_t>(before));
  }

  std::size_t bytes_max_;
  ClientShares shares_;
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
  /// Whether its client holds as much as is left.
  bool is_used_up() const { return budget_ != nullptr && budget_->is_used_up(client_); }
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

}  // namespace koho::server
