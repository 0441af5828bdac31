// SPDX-License-Identifier: Apache-2.0
// systemd's side of a service (sd_notify): what it is told, over a datagram socket, without its
// library. Where no manager listens nothing is sent.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace koho::server {

/// Threads: one.
class ServiceManager {
 public:
  struct Settings {
    std::string socket;            // $NOTIFY_SOCKET; "": nobody listens
    std::int64_t watchdog_us = 0;  // $WATCHDOG_USEC: the longest silence; 0 = any
  };

  /// The clock outlives it.
  ServiceManager(Settings settings, const Clock& clock);

  /// Sends a state, as "READY=1". What cannot be sent is a warning in the log.
  void tell(const std::string& state) const;

  /// Whether it is watched.
  bool has_watchdog() const { return settings_.watchdog_us > 0; }
  /// To be called every look_every_ms() where it is. Sends "WATCHDOG=1" at least twice within the
  /// longest silence, but nothing while the service is not `alive`: the manager then ends it and
  /// starts it anew.
  void keep_alive(bool alive);
  std::int64_t look_every_ms() const;

 private:
  Settings settings_;
  const Clock& clock_;
  std::int64_t next_us_ = 0;
};

}  // namespace koho::server
