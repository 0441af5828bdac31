// SPDX-License-Identifier: Apache-2.0
// A server with the embedded model in this process, on its own port.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "runtime/runtime.h"
#include "server/server.h"

namespace koho::server {

struct TinyRuntimeSizes {
  std::int64_t threads = 1;
  std::int32_t sequences = 1;
  std::int32_t queue = 64;  // requests beside those that run
};
/// The embedded model on the CPU, for sequences of 2048 tokens.
std::unique_ptr<Runtime> start_tiny_runtime(const TinyRuntimeSizes& sizes);

/// The server that most tests share, started once per process, with 8 sequences.
Runtime& tiny_runtime();

inline const SteadyClock kSteadyClock;

class TinyServer {
 public:
  /// `change` adapts the settings of a loopback server without keys. `clock` outlives it.
  explicit TinyServer(const std::function<void(ServerSettings&)>& change = {},
                      Runtime& runtime = tiny_runtime(),
                      const Clock& clock = kSteadyClock);

  std::uint16_t port() const { return server_->port(); }
  Server& server() { return *server_; }
  ServedModel& serving() { return serving_; }
  Counters& counters() { return server_->core().counters(); }

  /// Waits until nothing is live: requests of the server and of the engine, cache pages. False:
  /// that does not come.
  bool becomes_idle();

 private:
  ServedModel serving_;
  std::unique_ptr<Server> server_;
};

/// The server that most tests share.
TinyServer& shared_server();

}  // namespace koho::server
