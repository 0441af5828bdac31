// SPDX-License-Identifier: Apache-2.0
// A server without a model, in a process of its own: engine and server as `koho serve` has them,
// over ranks that answer at a fixed pace. The process that loads it sees its memory, its time and
// its descriptors from outside, and its counters through /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "base/error.h"
#include "server/settings.h"
#include "tokenizer/tokenizer.h"

namespace koho::bench {

struct LoadServerOptions {
  std::int32_t sequences = 64;   // computed at once
  std::int32_t waiting = 64;     // beside them
  std::int32_t context = 512;    // tokens of one
  std::int64_t period_us = 0;    // of a step; 0: at once
  server::TimeLimits time = {};  // of connections
  std::int32_t choices = 1;      // n at most
  bool keys = false;             // kSoakKeys are needed, some with limits
};

class LoadServer {
 public:
  /// Starts the process. Requires: the caller has no other threads. Errors: io_error.
  static Result<std::unique_ptr<LoadServer>> start(const Tokenizer& tokenizer,
                                                   const LoadServerOptions& options);
  /// Ends the process, whatever it does.
  ~LoadServer();
  LoadServer(const LoadServer&) = delete;
  LoadServer& operator=(const LoadServer&) = delete;

  std::uint16_t port() const { return port_; }
  /// Steps end at this time plus whole periods (SteadyClock); see PacedExecutor.
  std::int64_t begin_us() const { return begin_us_; }
  std::int64_t period_us() const { return period_us_; }
  static std::int32_t vocabulary(const Tokenizer& tokenizer);
  static constexpr std::array<std::string_view, 5> kSoakKeys{
      "sk-soak-first", "sk-soak-second", "sk-soak-third", "sk-soak-fourth", "sk-soak-fifth"};

  std::int64_t cpu_us() const;
  std::int64_t resident_bytes() const;
  /// What malloc has given out and not got back; 0 under sanitizers.
  std::int64_t heap_bytes() const;
  std::int64_t descriptors() const;
  std::int64_t threads() const;
  /// Has the process change the limits of its keys, as SIGHUP does.
  void reload_keys();
  /// Of the metrics page: the sum of all rows of `name`; -1 if there is none.
  double metric(std::string_view name) const;
  std::string metrics_page() const;
  static double metric_in(std::string_view page, std::string_view name);

  /// Waits, at most `timeout_us`, until nothing is left of any request: no page, request,
  /// connection or descriptor but those of an idle server. What is left, or "".
  std::string leftovers(std::int64_t timeout_us) const;
  /// Asks the process to drain and to end; true if it did so with exit code 0.
  bool end();

 private:
  LoadServer() = default;

  pid_t process_ = -1;
  int order_ = -1;   // a pipe: the process ends when it closes
  int answer_ = -1;  // another, from it
  std::uint16_t port_ = 0;
  std::int64_t begin_us_ = 0;
  std::int64_t period_us_ = 0;
  std::int64_t descriptors_idle_ = 0;
};

}  // namespace koho::bench
