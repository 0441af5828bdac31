// SPDX-License-Identifier: Apache-2.0
// Requests to the endpoints of the HTTP API, answered in this process: the same bodies and answers
// as `koho serve`, without a socket. Chat templates, tools, reasoning, structured outputs and
// streams come with them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "base/error.h"
#include "runtime/runtime.h"
#include "server/core.h"

namespace koho::capi {

/// Threads: any; a request serves one read() at a time.
class EndpointCalls {
 public:
  /// The runtime outlives this. `name` is the model's name in answers.
  EndpointCalls(Runtime& runtime, std::string name);
  EndpointCalls(const EndpointCalls&) = delete;
  EndpointCalls& operator=(const EndpointCalls&) = delete;
  ~EndpointCalls();

  /// Begins a request to the POST endpoint `path`; read() brings its answer. Errors: not_found: no
  /// such endpoint; invalid_argument: a live request has this id; resource_exhausted.
  Status post(std::int64_t id, std::string_view path, std::string body);

  struct Part {
    std::size_t bytes = 0;
    int status = 0;  // the answer's HTTP status, once these bytes are its last; else 0
  };
  /// Takes the answer's next bytes and waits for the first up to `timeout_ms` (negative: as long as
  /// it takes). After its last bytes the request is forgotten. Errors: not_found: no such request;
  /// unavailable: another call reads it; cancelled: by cancel() or close().
  Result<Part> read(std::int64_t id, std::span<char> out, std::int32_t timeout_ms);

  /// Cancels a request and forgets it. Errors: not_found.
  Status cancel(std::int64_t id);

  /// Cancels all requests and ends the waits of read().
  void close();

 private:
  struct Exchange;

  Status answer_text(const api::TextEndpoint& endpoint, const std::string& body, Exchange& into);
  std::shared_ptr<Exchange> find(std::int64_t id);
  void forget(std::int64_t id);
  /// Cancels what the request computes and ends the wait of its reader.
  static void end(Exchange& exchange);

  SteadyClock clock_;
  server::Core core_;
  server::ServedModel serving_;
  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_map<std::int64_t, std::shared_ptr<Exchange>> exchanges_;
};

}  // namespace koho::capi
