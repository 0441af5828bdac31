// SPDX-License-Identifier: Apache-2.0
// Notifies systemd about the state of the service (the sd_notify protocol over a datagram socket,
// without libsystemd). Sends nothing if no service manager listens.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace koho::server {

/// Threads: one.
class ServiceManager {
 public:
  struct Settings {
    std::string socket;            // $NOTIFY_SOCKET; "": no service manager
    std::int64_t watchdog_us = 0;  // $WATCHDOG_USEC: longest time between messages; 0 = no watchdog
  };

  /// The clock outlives it.
  ServiceManager(Settings settings, const Clock& clock);

  /// Sends a state such as "READY=1"; logs a warning if that fails.
  void tell(const std::string& state) const;

  /// Whether systemd watches this service.
  bool has_watchdog() const { return settings_.watchdog_us > 0; }
  /// Call this every look_every_ms() if there is a watchdog. Sends "WATCHDOG=1" at least twice per
  /// watchdog period while the service is `alive`; otherwise nothing, so that systemd restarts it.
  void keep_alive(bool alive);
  std::int64_t look_every_ms() const;

 private:
  Settings settings_;
  const Clock& clock_;
  std::int64_t next_us_ = 0;
};

}  // namespace koho::server
