// SPDX-License-Identifier: Apache-2.0
// Many clients of one server on one thread: each client is a connection with behaviour of its own,
// one event loop moves their bytes. Clients may be slow, leave at any byte, or vanish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include "base/clock.h"

namespace koho::bench {

class LoadGenerator;

class LoadClient {
 public:
  enum class End : std::uint8_t { closed, reset };  // by the server

  virtual ~LoadClient() = default;
  /// The connection stands; its place among all clients is this object's.
  virtual void on_open() = 0;
  virtual void on_bytes(std::string_view bytes) = 0;
  /// The server ended the connection. Nothing is called after it.
  virtual void on_end(End end) = 0;
  /// The time asked for with wake_at() has come.
  virtual void on_time() {}

 protected:
  /// Sent as the socket takes it.
  void send(std::string_view bytes);
  /// Closes the connection, orderly or not. Nothing is called after it.
  void leave(bool reset);
  /// From now on the kernel drops whatever comes from the server, unseen and unanswered, as if the
  /// machine were gone; nothing is sent. The socket stays until the generator ends.
  bool vanish();
  /// At most so many bytes are taken with the next read; 0: nothing is read until it is more.
  void read_at_most(std::size_t bytes);
  /// on_time() is called about then, once.
  void wake_at(std::int64_t us) { wake_us_ = us; }
  std::int64_t now_us() const;

 private:
  friend class LoadGenerator;

  LoadGenerator* generator_ = nullptr;
  int socket_ = -1;
  bool open_ = false;
  std::string unsent_;
  std::size_t read_max_ = std::numeric_limits<std::size_t>::max();
  std::int64_t wake_us_ = 0;  // 0: never
  std::size_t index_ = 0;
};

class LoadGenerator {
 public:
  /// Of a server on this machine: clients come from many addresses of the loopback network.
  explicit LoadGenerator(std::uint16_t port);
  /// Of the server at an address.
  explicit LoadGenerator(const sockaddr_storage& server);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  /// Connects. `receive_bytes`: of the kernel's buffer, 0 as it is. False: no connection.
  bool join(std::unique_ptr<LoadClient> client, int receive_bytes = 0);
  std::size_t size() const { return living_; }

  /// Moves bytes until `done` says so, which is asked every few milliseconds, or until `until_us`;
  /// then false.
  bool run(const std::function<bool()>& done, std::int64_t until_us);
  /// Until all clients are gone.
  bool run_out(std::int64_t until_us);
  /// All clients reset their connections.
  void leave_all();

 private:
  friend class LoadClient;

  void serve(LoadClient& client, std::uint32_t what);
  void flush(LoadClient& client);
  void watch(const LoadClient& client, bool first);
  void drop(LoadClient& client);
  void forget_gone();

  sockaddr_storage server_{};
  bool many_addresses_ = false;
  std::int64_t tick_us_;
  int poller_;
  SteadyClock clock_;
  std::int64_t now_us_ = 0;
  std::vector<std::unique_ptr<LoadClient>> clients_;
  std::vector<std::size_t> free_;  // places
  // Who left in this round of events: some of these may still be for them.
  std::vector<std::unique_ptr<LoadClient>> gone_;
  std::vector<std::size_t> freed_;
  std::size_t living_ = 0;
  std::size_t joined_ = 0;
  std::vector<char> buffer_;
};

}  // namespace koho::bench
