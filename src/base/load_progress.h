// SPDX-License-Identifier: Apache-2.0
// How much of a model's weights has been copied to the device: loader threads add to it, the
// server's readiness answer reads it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace koho {

/// Threads: any.
class LoadProgress {
 public:
  /// Without addresses and locks: they may lie in memory that processes share.
  struct Counters {
    std::atomic<std::int64_t> bytes_total{0};
    std::atomic<std::int64_t> bytes_done{0};
    std::atomic<std::int64_t> started_us{0};  // of `clock`; 0: not yet
  };
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);

  /// Counts for itself. `clock` outlives it.
  explicit LoadProgress(const Clock& clock) : LoadProgress(clock, own_) {}
  /// Counts in `counters`, which others of the same clock may count in, too.
  LoadProgress(const Clock& clock, Counters& counters) : clock_(clock), counters_(counters) {}
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  /// So many bytes more are to be moved. The first call starts the time.
  void expect(std::int64_t bytes);
  void arrived(std::int64_t bytes);

  struct Now {
    std::int64_t bytes_total = 0;  // 0: nothing is to be moved, as far as is known
    std::int64_t bytes_done = 0;
    double gb_per_s = 0.0;    // since the start
    double left_s = 0.0;      // at this rate; negative: unknown, nothing has arrived yet
    double fraction() const;  // 0..1
  };
  Now now() const;

 private:
  const Clock& clock_;
  Counters own_;
  Counters& counters_;
};

}  // namespace koho
