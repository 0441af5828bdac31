// SPDX-License-Identifier: Apache-2.0
#include "bench/load_generator.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace koho::bench {
namespace {

constexpr std::int64_t kTickUs = 5'000;
/// Where requests are due at times of their own.
constexpr std::int64_t kFineTickUs = 1'000;
constexpr std::size_t kReadBytes = 64U << 10U;
/// So that ports are no limit, clients come from so many addresses of the loopback network.
constexpr std::size_t kAddresses = 64;

}  // namespace

// ---- LoadClient

void LoadClient::send(std::string_view bytes) {
  unsent_ += bytes;
  if (open_ && socket_ >= 0) generator_->flush(*this);
}

void LoadClient::leave(bool reset) {
  if (reset) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  generator_->drop(*this);
}

bool LoadClient::vanish() {
  sock_filter drop_all{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop_all};
  return setsockopt(socket_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

void LoadClient::read_at_most(std::size_t bytes) {
  const bool changed = (bytes == 0) != (read_max_ == 0);
  read_max_ = bytes;
  if (changed && open_ && socket_ >= 0) generator_->watch(*this, false);
}

std::int64_t LoadClient::now_us() const {
  return generator_->now_us_;
}

// ---- LoadGenerator

LoadGenerator::LoadGenerator(std::uint16_t port)
    : many_addresses_(true), tick_us_(kTickUs), poller_(epoll_create1(0)), buffer_(kReadBytes) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&server_, &address, sizeof address);
}

LoadGenerator::LoadGenerator(const sockaddr_storage& server)
    : server_(server), tick_us_(kFineTickUs), poller_(epoll_create1(0)), buffer_(kReadBytes) {}

LoadGenerator::~LoadGenerator() {
  leave_all();
  close(poller_);
}

void LoadGenerator::leave_all() {
  for (const std::unique_ptr<LoadClient>& client : clients_)
    if (client) client->leave(true);
  forget_gone();
}

bool LoadGenerator::join(std::unique_ptr<LoadClient> client, int receive_bytes) {
  const int socket = ::socket(server_.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (socket < 0) return false;
  const int on = 1;
  setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (receive_bytes > 0)
    setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  if (many_addresses_) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr =
        htonl(INADDR_LOOPBACK + static_cast<in_addr_t>(joined_++ % kAddresses));
    bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  const socklen_t bytes =
      server_.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&server_), bytes) != 0 &&
      errno != EINPROGRESS) {
    close(socket);
    return false;
  }
  if (free_.empty()) {
    free_.push_back(clients_.size());
    clients_.emplace_back();
  }
  client->index_ = free_.back();
  free_.pop_back();
  client->generator_ = this;
  client->socket_ = socket;
  ++living_;
  watch(*client, true);
  clients_[client->index_] = std::move(client);
  return true;
}

void LoadGenerator::watch(const LoadClient& client, bool first) {
  epoll_event event{};
  if (client.read_max_ > 0) event.events |= EPOLLIN | EPOLLRDHUP;
  if (!client.open_ || !client.unsent_.empty()) event.events |= EPOLLOUT;
  event.data.u64 = client.index_;
  epoll_ctl(poller_, first ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, client.socket_, &event);
}

void LoadGenerator::drop(LoadClient& client) {
  close(client.socket_);
  client.socket_ = -1;
  --living_;
  freed_.push_back(client.index_);
  gone_.push_back(std::move(clients_[client.index_]));
}

void LoadGenerator::flush(LoadClient& client) {
  const bool had = !client.unsent_.empty();
  while (!client.unsent_.empty()) {
    const ssize_t bytes =
        ::send(client.socket_, client.unsent_.data(), client.unsent_.size(), MSG_NOSIGNAL);
    if (bytes < 0) {
      // Other errors come with the next event.
      if (errno != EAGAIN) client.unsent_.clear();
      break;
    }
    client.unsent_.erase(0, static_cast<std::size_t>(bytes));
  }
  if (had) watch(client, false);
}

void LoadGenerator::serve(LoadClient& client, std::uint32_t what) {
  const auto is_here = [&] { return client.socket_ >= 0; };
  const auto end = [&](LoadClient::End how) {
    client.on_end(how);
    if (is_here()) drop(client);
  };
  if (!client.open_) {
    if ((what & EPOLLERR) != 0) {
      end(LoadClient::End::reset);
      return;
    }
    client.open_ = true;
    client.on_open();
    if (!is_here()) return;
    watch(client, false);
  }
  if ((what & EPOLLOUT) != 0) flush(client);
  const bool broken = (what & (EPOLLERR | EPOLLHUP)) != 0;
  if (client.read_max_ == 0) {
    if (broken) end(LoadClient::End::reset);
    return;
  }
  if ((what & (EPOLLIN | EPOLLRDHUP)) == 0 && !broken) return;
  const ssize_t bytes =
      recv(client.socket_, buffer_.data(), std::min(buffer_.size(), client.read_max_), 0);
  if (bytes > 0) {
    client.on_bytes({buffer_.data(), static_cast<std::size_t>(bytes)});
  } else if (bytes == 0) {
    end(LoadClient::End::closed);
  } else if (errno != EAGAIN && errno != EINTR) {
    end(LoadClient::End::reset);
  }
}

bool LoadGenerator::run(const std::function<bool()>& done, std::int64_t until_us) {
  std::array<epoll_event, 512> events;
  std::int64_t next_tick_us = 0;
  while (true) {
    now_us_ = clock_.now_us();
    if (now_us_ >= next_tick_us) {
      next_tick_us = now_us_ + tick_us_;
      for (std::size_t i = 0; i < clients_.size(); ++i) {
        LoadClient* client = clients_[i].get();
        if (client == nullptr || client->wake_us_ == 0 || client->wake_us_ > now_us_) continue;
        client->wake_us_ = 0;
        client->on_time();
      }
      forget_gone();
      if (done()) return true;
      if (now_us_ >= until_us) return false;
    }
    const int ready = epoll_wait(poller_, events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(tick_us_ / 1000));
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      LoadClient* client = clients_[event.data.u64].get();
      if (client == nullptr) continue;  // it left in this round
      now_us_ = clock_.now_us();
      serve(*client, event.events);
    }
    forget_gone();
  }
}

void LoadGenerator::forget_gone() {
  gone_.clear();
  free_.insert(free_.end(), freed_.begin(), freed_.end());
  freed_.clear();
}

bool LoadGenerator::run_out(std::int64_t until_us) {
  return run([this] { return living_ == 0; }, until_us);
}

}  // namespace koho::bench
