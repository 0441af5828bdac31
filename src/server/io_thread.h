// SPDX-License-Identifier: Apache-2.0
// A thread that owns connections. Everything of a connection happens on its thread; other threads
// can only wake it. Private to the files that include Asio.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/core.h"

namespace koho::server {

class Connection;

/// Calls on_tick() of all its connections at every tick, so that no connection needs a timer.
class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  explicit IoThread(Core& core);
  ~IoThread();
  void start();
  void stop();

  boost::asio::io_context& context() { return context_; }
  Core& core() { return core_; }

  // ---- this thread
  void add(const std::shared_ptr<Connection>& connection);
  void remove(const std::shared_ptr<Connection>& connection);
  /// Read buffer shared by all connections of the thread.
  std::array<char, 64U << 10U>& scratch() { return scratch_; }

  // ---- any thread
  /// Has this thread call the connection's on_ready().
  void wake(std::shared_ptr<Connection> connection);

 private:
  void tick();
  void take_ready();

  Core& core_;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer timer_{context_};
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::array<char, 64U << 10U> scratch_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Connection>> ready_;
  std::vector<std::shared_ptr<Connection>> taken_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace koho::server
