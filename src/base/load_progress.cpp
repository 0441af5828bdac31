// SPDX-License-Identifier: Apache-2.0
// Bytes expected and arrived, and the mean rate since the first were expected.
#include "base/load_progress.h"

namespace koho {

void LoadProgress::expect(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes_total_ == 0) started_us_ = clock_.now_us();
  bytes_total_ += bytes;
}

void LoadProgress::arrived(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_done_ += bytes;
}

double LoadProgress::Now::fraction() const {
  return bytes_total == 0 ? 0.0
                          : static_cast<double>(bytes_done) / static_cast<double>(bytes_total);
}

LoadProgress::Now LoadProgress::now() const {
  const std::lock_guard lock(mutex_);
  Now now{.bytes_total = bytes_total_, .bytes_done = bytes_done_, .left_s = -1.0};
  const double elapsed_s = static_cast<double>(clock_.now_us() - started_us_) / 1e6;
  if (bytes_done_ == 0 || elapsed_s <= 0.0) return now;
  now.gb_per_s = static_cast<double>(bytes_done_) / 1e9 / elapsed_s;
  now.left_s = static_cast<double>(bytes_total_ - bytes_done_) / 1e9 / now.gb_per_s;
  return now;
}

}  // namespace koho
