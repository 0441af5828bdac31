// SPDX-License-Identifier: Apache-2.0
// Bytes expected and arrived, and the mean rate since the first were expected.
#include "base/load_progress.h"

namespace koho {

void LoadProgress::expect(std::int64_t bytes) {
  std::int64_t never = 0;
  counters_.started_us.compare_exchange_strong(never, clock_.now_us());
  counters_.bytes_total += bytes;
}

void LoadProgress::arrived(std::int64_t bytes) {
  counters_.bytes_done += bytes;
}

double LoadProgress::Now::fraction() const {
  return bytes_total == 0 ? 0.0
                          : static_cast<double>(bytes_done) / static_cast<double>(bytes_total);
}

LoadProgress::Now LoadProgress::now() const {
  Now now{.bytes_total = counters_.bytes_total, .bytes_done = counters_.bytes_done, .left_s = -1.0};
  const double elapsed_s = static_cast<double>(clock_.now_us() - counters_.started_us) / 1e6;
  if (now.bytes_done == 0 || elapsed_s <= 0.0) return now;
  now.gb_per_s = static_cast<double>(now.bytes_done) / 1e9 / elapsed_s;
  now.left_s = static_cast<double>(now.bytes_total - now.bytes_done) / 1e9 / now.gb_per_s;
  return now;
}

}  // namespace koho
