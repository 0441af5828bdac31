// SPDX-License-Identifier: Apache-2.0
// What `koho serve` tells its user while it loads, when it is ready, and while it is busy.
#pragma once

#include <chrono>
#include <cstdint>

#include "app/periodic_look.h"
#include "app/progress_bar.h"
#include "app/serve_options.h"
#include "base/load_progress.h"
#include "engine/statistics.h"

namespace koho::app {

/// While it lives: a bar on a terminal, elsewhere a log line every ten seconds.
class LoadWatch {
 public:
  /// `progress` outlives it.
  explicit LoadWatch(const LoadProgress& progress);

 private:
  void look();

  const LoadProgress& progress_;
  bool terminal_;
  ProgressBar bar_{"loading weights"};
  PeriodicLook looks_;
};

/// The addresses of the API and of the page, and a curl line to try: lines of text, or one log line
/// of JSON with fields.
void tell_ready(const ServeOptions& options, std::uint16_t port);

/// One log line every so often while requests run or wait: their number, prefill and decode
/// tokens/s, the share of prompt tokens that the prefix cache had.
class ThroughputLog {
 public:
  /// 0: none.
  explicit ThroughputLog(std::int64_t interval_s) : interval_(interval_s) {}

  /// Looks whether it is time.
  void look(const Statistics& now);

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::seconds interval_;
  Clock::time_point since_ = Clock::now();
  Statistics before_;
};

}  // namespace koho::app
