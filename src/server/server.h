// SPDX-License-Identifier: Apache-2.0
// The server: a listener, a few threads that own all connections, and what they share. Starts
// before the model is there and says so; drains before it ends. Asio stays behind this header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "server/core.h"
#include "server/settings.h"

namespace koho::server {

class Server {
 public:
  /// Listens and answers from now on; requests to the model get 503 until set_serving(). The clock
  /// outlives the server. Errors: invalid_argument (host, certificate or key); io_error (the port
  /// is taken, the host is no address of this machine).
  static Result<std::unique_ptr<Server>> start(ServerSettings settings, const Clock& clock);
  /// What start() would refuse, but for the port, which may be taken and is not asked for. Errors:
  /// those of start().
  static Status check(const ServerSettings& settings);
  /// Closes every connection and joins the threads. The engine must still be there, if set.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Core& core() { return *core_; }
  std::uint16_t port() const;

  /// Takes no new work; waits until the running requests have ended, at most `timeout_us`; ends the
  /// rest with an error; waits until their answers are sent. Threads: any but the server's.
  void drain(std::int64_t timeout_us);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace koho::server
