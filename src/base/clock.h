// SPDX-License-Identifier: Apache-2.0
// Time as an interface, so that tests decide what it is. Monotonic: a wall clock that jumps changes
// no timer.
#pragma once

#include <chrono>
#include <cstdint>

namespace koho {

/// Monotonic time in microseconds from an arbitrary start. Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t now_us() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace koho
