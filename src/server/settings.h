// SPDX-License-Identifier: Apache-2.0
// The server's settings, which `koho serve` sets from its flags, and its limits for clients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_keys.h"

namespace koho::server {

struct HttpLimits {
  std::size_t head_bytes = 32U << 10U;
  std::size_t fields = 64;
  std::size_t target_bytes = 4U << 10U;
  /// Fits a context of 200,000 tokens many times over, in any script and written with escapes.
  std::size_t body_bytes = 16U << 20U;
  /// The path whose bodies are files, and their largest; "" is none.
  std::string_view upload_path{};
  std::size_t upload_bytes = 200'000'000;  // OpenAI's largest for a batch
};

struct TimeLimits {
  std::int64_t tick_ms = 250;           // how often the other limits are checked
  std::int64_t head_ms = 10'000;        // from a request's first byte to its head
  std::int64_t body_grace_ms = 10'000;  // after which a body must come at body_bytes_per_s
  std::int64_t body_bytes_per_s = 1'000;
  std::int64_t body_bytes_per_s_scarce = 64'000;  // while the budget for bodies is nearly used up
  std::int64_t write_stall_ms = 30'000;           // without a byte taken
  std::int64_t idle_ms = 75'000;                  // between two requests
  std::int64_t ping_ms = 15'000;                  // without an event in a stream; 0 = never
  std::int64_t feed_ms = 1'000;                   // between two events of a feed
  std::int64_t flush_ms = 2'000;                  // for last bytes at the end of the server
  std::int64_t batch_retry_ms = 1'000;  // after which a batch that waits for the disk tries again
};

struct ServerSettings {
  std::string host = "0.0.0.0";
  std::uint16_t port = 8000;      // 0: any free port
  std::int32_t io_threads = 0;    // 0: one per core, at most 8
  std::int32_t text_threads = 2;  // render and tokenise large bodies
  std::size_t connections_max = 65'536;
  HttpLimits http;
  TimeLimits time;
  std::size_t buffer_bytes_max =
      256U << 10U;  // unsent bytes of a connection; its request is paused beyond them
  /// Of each connection's socket (SO_SNDBUF): by default the kernel would buffer megabytes for a
  /// client that does not read.
  std::int32_t socket_send_bytes = 128 << 10;
  std::size_t inline_body_bytes = 4U << 10U;  // a pool thread reads larger bodies
  /// Memory for all bodies at once: their bytes, and three times those of the bodies that the
  /// pool's threads parse at the moment.
  std::size_t bodies_bytes_max = 1'000'000'000;

  std::string model_name;  // label `model_name` of the metrics
  std::string build_info;  // for /version and /server_info: members of a JSON object, or ""

  std::string files_dir;  // of /v1/files and /v1/batches; "": there are none
  std::int64_t files_bytes_max = 20'000'000'000;  // of all files, before the answers of batches

  std::string tls_cert;  // a PEM file; "" is plain HTTP
  std::string tls_key;   // "": in the same file

  std::vector<ApiKeySettings> api_keys;      // initial keys of Core; empty: no key is needed
  std::vector<std::string> allowed_origins;  // "*" is any
  std::vector<std::string> allowed_hosts;    // "*" is any; empty: only a loopback address checks
  int overload_status = 429;                 // or 503
  bool log_requests = true;
};

}  // namespace koho::server
