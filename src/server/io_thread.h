// SPDX-License-Identifier: Apache-2.0
// A thread that owns connections. Everything of a connection happens on its thread; other threads
// can only wake it. Private to the files that include Asio.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/core.h"

namespace koho::server {

class Connection;
struct Route;

/// Calls on_tick() of all its connections at every tick, so that no connection needs a timer.
/// Clients take turns for the thread, and a tick pauses for them, so that nobody waits behind all
/// connections of another.
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
  /// Has this thread call the connection's on_turn() when it is its client's turn.
  void take_turn(std::uint64_t client, std::shared_ptr<Connection> connection);
  /// The route's event, made once for all that are due at this tick.
  std::string_view event_of(const Route& route, std::int64_t tick_us);
  /// Read buffer shared by all connections of the thread.
  std::array<char, 64U << 10U>& scratch() { return scratch_; }

  // ---- any thread
  /// Has this thread call the connection's on_ready().
  void wake(std::shared_ptr<Connection> connection);

 private:
  void tick();
  void tick_some();
  void take_ready();
  void take_turns();

  Core& core_;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer timer_{context_};
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::array<char, 64U << 10U> scratch_;
  std::unordered_map<std::uint64_t, std::deque<std::shared_ptr<Connection>>> waiting_;  // by client
  std::deque<std::uint64_t> turns_;  // of those who wait
  bool turns_posted_ = false;
  const Route* event_route_ = nullptr;  // what event_ is of …
  std::int64_t event_us_ = 0;           // … and when it was made
  std::string event_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Connection>> ready_;
  std::vector<std::shared_ptr<Connection>> taken_;
  std::vector<std::shared_ptr<Connection>> ticked_;  // whose on_tick() is still to be called …
  std::int64_t tick_us_ = 0;                         // … with this time
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace koho::server
