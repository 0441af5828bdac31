// SPDX-License-Identifier: Apache-2.0
// A server in processes of its own, which the process that loads it sees from outside: memory,
// time, threads and descriptors through /proc, counters through /metrics. What is started is
// elsewhere: load_paced_server.h (no model) and load_koho_server.h (`koho serve`).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/error.h"
#include "server/settings.h"

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

inline constexpr std::array<std::string_view, 5> kSoakKeys{
    "sk-soak-first", "sk-soak-second", "sk-soak-third", "sk-soak-fourth", "sk-soak-fifth"};
/// The keys after so many reloads: limits, salts and priorities change, and one comes and goes.
/// The fourth's name tells the number of reloads.
std::vector<server::ApiKeySettings> soak_keys(std::int64_t reloads);

class LoadServer {
 public:
  /// Kills the process, if it lives.
  virtual ~LoadServer();
  LoadServer(const LoadServer&) = delete;
  LoadServer& operator=(const LoadServer&) = delete;

  std::uint16_t port() const { return port_; }
  /// Where steps are paced, they end at this time plus whole periods (SteadyClock); see
  /// PacedExecutor.
  std::int64_t begin_us() const { return begin_us_; }
  std::int64_t period_us() const { return period_us_; }

  /// The server's process, then its workers', as they were when it was ready.
  const std::vector<pid_t>& processes() const { return processes_; }
  /// Of all of them together, like the three below.
  std::int64_t cpu_us() const;
  std::int64_t resident_bytes() const;
  std::int64_t descriptors() const;  // but for those of files of /proc about threads
  std::int64_t threads() const;
  static std::int64_t resident_bytes_of(pid_t process);
  /// What malloc has given out and not got back; 0 under sanitizers, -1 if that is not known.
  virtual std::int64_t heap_bytes() const = 0;
  /// What computes: "NVIDIA H200"; "" without a model.
  virtual std::string device() const = 0;

  /// Has the server read its keys again.
  void reload_keys() { change_keys(++reloads_); }
  /// Of the metrics page: the sum of all rows of `name`; -1 if there is none.
  double metric(std::string_view name) const;
  std::string metrics_page() const;
  static double metric_in(std::string_view page, std::string_view name);

  /// Waits, at most `timeout_us`, until nothing is left of any request: no page, request,
  /// connection or descriptor but those of an idle server, whose processes are those that it had,
  /// and whose keys are the last. What is left or different, or "".
  std::string leftovers(std::int64_t timeout_us) const;
  /// Has the server drain and end. What went wrong, or "".
  virtual std::string end() = 0;

 protected:
  LoadServer() = default;
  /// The server is ready: what it has now is what it has when idle. Errors: io_error (no answer).
  Status look();
  /// An answer, over a connection of its own. `descriptors`: of the server while that is open.
  std::string answer_to(std::string_view path, std::int64_t* descriptors = nullptr) const;
  virtual void change_keys(std::int64_t reloads) = 0;

  pid_t process_ = -1;
  std::uint16_t port_ = 0;
  std::int64_t begin_us_ = 0;
  std::int64_t period_us_ = 0;

 private:
  std::vector<pid_t> processes_;
  std::int64_t descriptors_idle_ = 0;
  std::int64_t reloads_ = 0;
};

}  // namespace koho::bench
