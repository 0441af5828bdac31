// SPDX-License-Identifier: Apache-2.0
#include "app/load_bar.h"

#include <chrono>

#include <fmt/format.h>

#include "app/progress_bar.h"

namespace koho::app {

std::string load_progress_text(const LoadProgress::Now& now) {
  return fmt::format("{:.1f} of {:.1f} GB · {:.1f} GB/s", static_cast<double>(now.bytes_done) / 1e9,
                     static_cast<double>(now.bytes_total) / 1e9, now.gb_per_s);
}

LoadBar::LoadBar() : watcher_([this] { watch(); }) {}

LoadBar::~LoadBar() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  ended_.notify_one();
  watcher_.join();
}

void LoadBar::watch() {
  ProgressBar bar("loading weights");
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(100), [this] { return done_; })) {
    const LoadProgress::Now now = progress_.now();
    if (now.bytes_total > 0) bar.show(now.fraction(), now.left_s, load_progress_text(now));
  }
}

}  // namespace koho::app
