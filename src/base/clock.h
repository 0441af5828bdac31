// SPDX-License-Identifier: Apache-2.0
// Time as an interface, so that tests decide what it is. Monotonic: a wall clock that jumps changes
// no timer. And time for what measures itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace koho {

/// Monotonic time in nanoseconds from an arbitrary start.
inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Processor time of the calling thread so far, in nanoseconds.
inline std::int64_t thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Monotonic time in microseconds from an arbitrary start. Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t now_us() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_us() const override { return steady_ns() / 1000; }
};

}  // namespace koho
