// SPDX-License-Identifier: Apache-2.0
// The progress of loading weights onto devices, on standard error while it lives.
#pragma once

#include <string>

#include "app/periodic_look.h"
#include "app/progress_bar.h"
#include "base/clock.h"
#include "base/load_progress.h"

namespace koho::app {

class LoadBar {
 public:
  /// For DeviceOptions::progress.
  LoadProgress* progress() { return &progress_; }

 private:
  void look();

  SteadyClock clock_;
  LoadProgress progress_{clock_};
  ProgressBar bar_{"loading weights"};
  PeriodicLook looks_{std::chrono::milliseconds(100), [this] { look(); }};
};

/// "61.3 of 357.8 GB · 3.2 GB/s".
std::string load_progress_text(const LoadProgress::Now& now);

}  // namespace koho::app
