// SPDX-License-Identifier: Apache-2.0
// How much of a model's weights has been copied to the device: loader threads add to it, the
// server's readiness answer reads it.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace koho {

/// Threads: any.
class LoadProgress {
 public:
  /// `clock` outlives it.
  explicit LoadProgress(const Clock& clock) : clock_(clock) {}

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
  mutable std::mutex mutex_;
  std::int64_t bytes_total_ = 0;
  std::int64_t bytes_done_ = 0;
  std::int64_t started_us_ = 0;
};

}  // namespace koho
