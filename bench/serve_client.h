// SPDX-License-Identifier: Apache-2.0
// The client of `koho bench serve`: sends requests at their times, reads their streams, notes when
// each token came. One thread; connections are kept and used again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/serve_report.h"

namespace koho::bench {

/// Where a server is: http://HOST:PORT and the path before /v1.
struct ServerUrl {
  std::string host;
  std::uint16_t port = 80;
  std::string path;  // "", or "/prefix"
};
/// "HOST:PORT" is http, too. Errors: invalid_argument; unsupported: https.
Result<ServerUrl> parse_server_url(const std::string& text);

/// One answer, whole.
struct HttpAnswer {
  int status = 0;  // 0: none came
  std::string body{};
};
/// Errors: io_error: there is no such server.
Result<HttpAnswer> get(const ServerUrl& server,
                       const std::string& path,
                       const std::map<std::string, std::string>& fields);

/// One request of a run. A session's later turns come when the one before is answered.
struct PlannedRequest {
  double at_s = 0.0;               // when it is due, from the run's begin
  std::int64_t prompt_tokens = 0;  // what the client knows; the server's count wins
  /// The body's JSON. `answers` are the session's answers so far.
  std::function<std::string(const std::vector<std::string>& answers)> body{};
  std::int64_t follows = -1;  // the request that this is the next turn of
};

struct ClientSettings {
  ServerUrl server{};
  std::string path{};  // of the endpoint
  std::map<std::string, std::string> fields{};
  std::int64_t concurrency = 0;  // 0: no bound
  std::int64_t timeout_s = 6 * 3600;
};

/// Runs all requests; `told` is called now and then with the number of those that are over.
/// Errors: io_error: there is no such server. The error of one request is in its result.
Result<ServedRun> run_requests(const ClientSettings& settings,
                               const std::vector<PlannedRequest>& requests,
                               const std::function<void(std::int64_t over)>& told);

}  // namespace koho::bench
