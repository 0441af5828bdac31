// SPDX-License-Identifier: Apache-2.0
// The server: a listener, a few threads that own all connections, and their shared state. It starts
// before the model is loaded and answers 503 until then; it drains before it ends. This header
// hides Asio.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "server/batch_service.h"
#include "server/core.h"
#include "server/settings.h"

namespace koho::server {

class Server {
 public:
  /// Starts listening; requests for the model get 503 until set_serving(). The clock outlives the
  /// server. Errors: invalid_argument (host, certificate or key); io_error (the port
  /// is taken, the host is not an address of this machine, the directory for files); unavailable
  /// (another server uses that directory).
  static Result<std::unique_ptr<Server>> start(ServerSettings settings, const Clock& clock);
  /// Checks everything that start() checks except the port, which may be in use. Errors: those of
  /// start().
  static Status check(const ServerSettings& settings);
  /// Listens on the port for a moment. Errors: start()'s for it.
  static Status try_port(const ServerSettings& settings);
  /// Closes every connection and waits for the threads. Requires: the engine, if set, still exists.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Core& core() { return *core_; }
  std::uint16_t port() const;

  /// Refuses new requests, waits at most `timeout_us` for the running ones, ends the rest with an
  /// error and waits until the answers are sent. Threads: any but the server's.
  void drain(std::int64_t timeout_us);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Core> core);

  std::unique_ptr<BatchService> batches_;  // null: none; threads of the core's pool use it
  std::unique_ptr<Core> core_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace koho::server
