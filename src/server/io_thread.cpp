// SPDX-License-Identifier: Apache-2.0
#include "server/io_thread.h"

#include <utility>

#include <boost/asio/post.hpp>

#include "server/connection.h"

namespace koho::server {

namespace asio = boost::asio;

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
  if (stopping_) return;
  const std::int64_t now = core_.clock().now_us();
  std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const std::shared_ptr<Connection>& connection : all) connection->on_tick(now);
  core_.take_sample();
  timer_.expires_after(std::chrono::milliseconds(core_.settings().time.tick_ms));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) tick();
  });
}

}  // namespace koho::server
