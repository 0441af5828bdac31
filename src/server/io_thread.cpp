// SPDX-License-Identifier: Apache-2.0
#include "server/io_thread.h"

#include <utility>

#include <boost/asio/post.hpp>

#include "server/connection.h"

namespace koho::server {

namespace asio = boost::asio;

namespace {

/// After which a thread looks at its sockets again, for those who came meanwhile.
constexpr std::int64_t kMomentUs = 200;

}  // namespace

IoThread::IoThread(Core& core) : core_(core) {}

IoThread::~IoThread() {
  stop();
}

void IoThread::start() {
  thread_ = std::thread([this] {
    tick();
    context_.run();
  });
}

void IoThread::stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    stopping_ = true;
    timer_.cancel();
    while (!connections_.empty()) {
      const std::shared_ptr<Connection> connection = *connections_.begin();
      connection->close();
    }
    turns_.clear();
    waiting_.clear();
    ticked_.clear();
    context_.stop();
  });
  thread_.join();
}

void IoThread::add(const std::shared_ptr<Connection>& connection) {
  connections_.insert(connection);
}

void IoThread::remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
}

void IoThread::take_turn(std::uint64_t client, std::shared_ptr<Connection> connection) {
  std::deque<std::shared_ptr<Connection>>& own = waiting_[client];
  own.push_back(std::move(connection));
  if (own.size() == 1) turns_.push_back(client);
  if (!std::exchange(turns_posted_, true)) asio::post(context_, [this] { take_turns(); });
}

/// Serves for a moment.
void IoThread::take_turns() {
  const std::int64_t end_us = core_.clock().now_us() + kMomentUs;
  while (!turns_.empty() && core_.clock().now_us() < end_us) {
    const std::uint64_t client = turns_.front();
    const auto own = waiting_.find(client);
    const std::shared_ptr<Connection> next = std::move(own->second.front());
    own->second.pop_front();
    turns_.pop_front();
    if (own->second.empty()) {
      waiting_.erase(own);
    } else {
      turns_.push_back(client);
    }
    next->on_turn();
  }
  turns_posted_ = !turns_.empty();
  if (turns_posted_) asio::post(context_, [this] { take_turns(); });
}

std::string_view IoThread::event_of(const Route& route, std::int64_t tick_us) {
  if (event_route_ != &route || event_us_ != tick_us) event_ = route.feed(core_);
  event_route_ = &route;
  event_us_ = tick_us;
  return event_;
}

void IoThread::wake(std::shared_ptr<Connection> connection) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = ready_.empty();
    ready_.push_back(std::move(connection));
  }
  if (first) asio::post(context_, [this] { take_ready(); });
}

void IoThread::take_ready() {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(ready_);
  }
  for (const std::shared_ptr<Connection>& connection : taken_) connection->on_ready();
  taken_.clear();
}

void IoThread::tick() {
  tick_us_ = core_.clock().now_us();
  ticked_.assign(connections_.begin(), connections_.end());
  tick_some();
}

/// Goes on with the tick for a moment.
void IoThread::tick_some() {
  if (stopping_) return;
  const std::int64_t end_us = core_.clock().now_us() + kMomentUs;
  while (!ticked_.empty() && core_.clock().now_us() < end_us) {
    ticked_.back()->on_tick(tick_us_);
    ticked_.pop_back();
  }
  if (!ticked_.empty()) {
    asio::post(context_, [this] { tick_some(); });
    return;
  }
  core_.take_sample();
  timer_.expires_after(std::chrono::milliseconds(core_.settings().time.tick_ms));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) tick();
  });
}

}  // namespace koho::server
