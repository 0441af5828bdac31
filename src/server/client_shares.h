// SPDX-License-Identifier: Apache-2.0
// Something of which the server has so many, shared among clients: one has no more than are left
// beside, so that one alone has half, n have 1/(n+1) each, and whoever comes later finds some; or
// no more than so many times that.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace koho::server {

/// Threads: any.
class ClientShares {
 public:
  /// One client has at most `times` what is left.
  explicit ClientShares(std::int64_t most = 0, std::int64_t times = 1)
      : most_(most), times_(times) {}
  ClientShares(const ClientShares&) = delete;
  ClientShares& operator=(const ClientShares&) = delete;

  /// Before any is taken.
  void set_most(std::int64_t most) { most_ = most; }
  /// False: `client` has as many as it may, `reserved` ones apart. The first one is given if there
  /// is one.
  [[nodiscard]] bool take(std::uint64_t client, std::int64_t number, std::int64_t reserved = 0) {
    const std::lock_guard lock(mutex_);
    const std::int64_t own = number + owned_by(client);
    const std::int64_t left = most_ - reserved - taken_ - number;
    if (left < 0 || (own / times_ > left && own > 1)) return false;
    add(client, number);
    return true;
  }
  /// Takes, or gives back where `number` is negative, whether there is room or not.
  void change(std::uint64_t client, std::int64_t number) {
    const std::lock_guard lock(mutex_);
    add(client, number);
  }
  void give_back(std::uint64_t client, std::int64_t number) { change(client, -number); }

  std::int64_t taken() const {
    const std::lock_guard lock(mutex_);
    return taken_;
  }
  /// Whether the client holds some, and as many as are left.
  bool is_used_up(std::uint64_t client) const {
    const std::lock_guard lock(mutex_);
    const std::int64_t own = owned_by(client);
    return own > 0 && own + taken_ >= most_;
  }

 private:
  std::int64_t owned_by(std::uint64_t client) const {
    const auto found = owned_.find(client);
    return found == owned_.end() ? 0 : found->second;
  }
  void add(std::uint64_t client, std::int64_t number) {
    const auto found = owned_.try_emplace(client).first;  // throws before anything is taken
    taken_ += number;
    if ((found->second += number) == 0) owned_.erase(found);
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::int64_t> owned_;  // none is 0
  std::int64_t most_;
  std::int64_t times_;
  std::int64_t taken_ = 0;
};

/// What one client took; given back with this, which may be after the server's end.
class ClientShare {
 public:
  ClientShare() = default;
  ~ClientShare() { give_back(); }
  ClientShare(ClientShare&& other) noexcept
      : shares_(std::move(other.shares_)), client_(other.client_), number_(other.number_) {}
  ClientShare& operator=(ClientShare&& other) noexcept {
    give_back();
    shares_ = std::move(other.shares_);
    client_ = other.client_;
    number_ = other.number_;
    return *this;
  }

  /// False: there is nothing for this client, and the share stays empty. Requires: it is empty.
  [[nodiscard]] bool take(const std::shared_ptr<ClientShares>& shares,
                          std::uint64_t client,
                          std::int64_t number) {
    if (!shares->take(client, number)) return false;
    shares_ = shares;
    client_ = client;
    number_ = number;
    return true;
  }
  void give_back() {
    if (shares_ != nullptr) shares_->give_back(client_, number_);
    shares_.reset();
  }

 private:
  std::shared_ptr<ClientShares> shares_{};
  std::uint64_t client_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace koho::server
