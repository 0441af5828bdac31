// SPDX-License-Identifier: Apache-2.0
// The progress of loading weights onto devices, on standard error while it lives.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/load_progress.h"

namespace koho::app {

class LoadBar {
 public:
  LoadBar();
  LoadBar(const LoadBar&) = delete;
  LoadBar& operator=(const LoadBar&) = delete;
  ~LoadBar();

  /// For DeviceOptions::progress.
  LoadProgress* progress() { return &progress_; }

 private:
  void watch();

  SteadyClock clock_;
  LoadProgress progress_{clock_};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread watcher_;
};

/// "61.3 of 357.8 GB · 3.2 GB/s".
std::string load_progress_text(const LoadProgress::Now& now);

}  // namespace koho::app
