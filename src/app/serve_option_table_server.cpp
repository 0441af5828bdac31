// SPDX-License-Identifier: Apache-2.0
// The options of `koho serve` that are about connections, access, files and the log.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/serve_option_parts.h"
#include "app/serve_option_values.h"

namespace koho::app {
namespace {

using Takes = ServeOption::Takes;
using O = ServeOptions;
using S = const std::string&;

constexpr std::int64_t kMany = std::int64_t{1} << 30;

}  // namespace

std::vector<ServeOption> address_and_access_options() {
  return {
      {"Server", "--host", "ADDRESS", "Address to listen on", Takes::value,
       [](O& o, S v) { return set_text(o.server.host, v); },
       [](const O& o) { return o.server.host; }},
      {"Server", "--port,-p", "PORT", "Port to listen on; 0 = any free port", Takes::value,
       [](O& o, S v) { return set_number(o.server.port, v, 0, 65535); },
       [](const O& o) { return fmt::to_string(o.server.port); }},
      {"Server", "--api-key", "KEY",
       "A key that requests must carry; may be given several times. Other users of the machine can "
       "see command lines: prefer --api-key-file or the environment",
       Takes::list,
       [](O& o, S v) -> Status {
         if (v.empty())
           return make_error(ErrorCode::invalid_argument, "expected a key, found an empty string");
         o.given_keys.push_back(v);
         return {};
       },
       nullptr},
      {"Server", "--api-key-file,--api-keys-file", "FILE",
       "File with one key per line, or JSON with limits by key (as deploy/api-keys.json); SIGHUP "
       "reads it again",
       Takes::value, [](O& o, S v) { return add_text(o.api_key_files, v); }, nullptr},
      {"Server", "--tls-cert,--ssl-certfile,--ssl-cert-file", "FILE",
       "Serve HTTPS with this certificate and its chain (PEM); read at the start", Takes::value,
       [](O& o, S v) { return set_text(o.server.tls_cert, v); },
       [](const O& o) { return o.server.tls_cert; }},
      {"Server", "--tls-key,--ssl-keyfile,--ssl-key-file", "FILE",
       "Private key of the certificate (PEM, no passphrase); default: the file of --tls-cert holds "
       "it",
       Takes::value, [](O& o, S v) { return set_text(o.server.tls_key, v); },
       [](const O& o) { return o.server.tls_key; }},
      {"Server", "--allowed-origins", "ORIGIN",
       "CORS origin whose web pages may send requests; may be given several times; * = any",
       Takes::list, [](O& o, S v) { return add_text(o.server.allowed_origins, v); },
       [](const O& o) { return fmt::format("{}", fmt::join(o.server.allowed_origins, ",")); }},
      {"Server", "--allowed-hosts", "NAME",
       "Name that the Host header may have beside addresses and localhost; may be given several "
       "times; * = any",
       Takes::list, [](O& o, S v) { return add_text(o.server.allowed_hosts, v); },
       [](const O& o) { return fmt::format("{}", fmt::join(o.server.allowed_hosts, ",")); }},
  };
}

std::vector<ServeOption> server_limit_options() {
  return {
      {"Server", "--max-num-queued-reqs,--max-queued-requests", "N",
       "Requests of one client that may wait; further ones are refused with --overload-status",
       Takes::value, [](O& o, S v) { return set_number(o.runtime.queue_max, v, 0, 1 << 19); },
       [](const O& o) { return fmt::to_string(o.runtime.queue_max); }},
      {"Server", "--overload-status", "STATUS",
       "HTTP status of a request that finds the queue full: 429 or 503", Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"429", "503"}));
         o.server.overload_status = word == "429" ? 429 : 503;
         return {};
       },
       [](const O& o) { return fmt::to_string(o.server.overload_status); }},
      {"Server", "--shutdown-timeout", "SECONDS",
       "Time that running requests have to finish after SIGTERM", Takes::value,
       [](O& o, S v) { return set_number(o.shutdown_timeout_s, v, 0, 86'400); },
       [](const O& o) { return fmt::to_string(o.shutdown_timeout_s); }},
      {"Server", "--sse-keep-alive-interval,--sse-ping-interval", "SECONDS",
       "Time between keep-alive comments in a stream without events; 0 = none", Takes::value,
       [](O& o, S v) -> Status {
         std::int64_t seconds = 0;
         KOHO_TRY(set_number(seconds, v, 0, 86'400));
         o.server.time.ping_ms = 1000 * seconds;
         return {};
       },
       [](const O& o) { return fmt::to_string(o.server.time.ping_ms / 1000); }},
      {"Server", "--max-body-bytes", "BYTES", "Largest body of a request; 64m is 67108864",
       Takes::value, [](O& o, S v) { return set_number(o.server.http.body_bytes, v, 1024, kMany); },
       [](const O& o) { return fmt::to_string(o.server.http.body_bytes); }},
      {"Server", "--files-dir", "DIRECTORY",
       "Directory of /v1/files and /v1/batches, for one server alone; without it there are none",
       Takes::value, [](O& o, S v) { return set_text(o.server.files_dir, v); },
       [](const O& o) { return o.server.files_dir; }},
      {"Server", "--files-max-bytes", "BYTES",
       "Size of all files there; of several API keys each has at most half of what others left; "
       "20g is 21474836480",
       Takes::value, [](O& o, S v) { return set_bytes(o.server.files_bytes_max, v); },
       [](const O& o) { return fmt::to_string(o.server.files_bytes_max); }},
      {"Server", "--max-connections", "N", "Largest number of open connections of one address",
       Takes::value, [](O& o, S v) { return set_number(o.server.connections_max, v, 1, 1 << 20); },
       [](const O& o) { return fmt::to_string(o.server.connections_max); }},
      {"Server", "--io-threads,--threads-http", "N",
       "Threads that read and write connections; 0 = one per core, at most 8", Takes::value,
       [](O& o, S v) { return set_number(o.server.io_threads, v, 0, 64); },
       [](const O& o) { return fmt::to_string(o.server.io_threads); }},
      {"Server", "--strict-params", "", "Refuse fields that koho does not know", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.strict_fields, v); },
       [](const O& o) { return shown_boolean(o.strict_fields); }},
  };
}

std::vector<ServeOption> log_options() {
  return {
      {"Log", "--log-level", "LEVEL", "debug, info, warning or error", Takes::value,
       [](O& o, S v) {
         return set_word(o.log_level, v, {"debug", "info", "warning", "error"});
       },
       [](const O& o) { return o.log_level; }},
      {"Log", "--log-format", "FORMAT", "text, json, or auto: text on a terminal, else json",
       Takes::value,
       [](O& o, S v) {
         return set_word(o.log_format, v, {"auto", "text", "json"});
       },
       [](const O& o) { return o.log_format; }},
      {"Log", "--log-stats-interval", "SECONDS",
       "Time between two lines of throughput while requests run; 0 = none", Takes::value,
       [](O& o, S v) { return set_number(o.log_stats_s, v, 0, 86'400); },
       [](const O& o) { return fmt::to_string(o.log_stats_s); }},
      {"Log", "--disable-log-stats", "", "The same as --log-stats-interval 0", Takes::nothing,
       [](O& o, S v) { return set_if_on(o.log_stats_s, std::int64_t{0}, v); }, nullptr},
      {"Log", "--enable-log-requests,--log-requests", "",
       "Log one line per request, without its text", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.server.log_requests, v); },
       [](const O& o) { return shown_boolean(o.server.log_requests); }},
      {"Log", "--disable-log-requests", "", "Log no line per request", Takes::nothing,
       [](O& o, S v) { return set_negated(o.server.log_requests, v); }, nullptr},
  };
}

}  // namespace koho::app
