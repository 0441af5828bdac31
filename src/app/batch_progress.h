// SPDX-License-Identifier: Apache-2.0
// How far `koho batch` is, on standard error, and the totals at its end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "app/progress_bar.h"
#include "base/line_reader.h"

namespace koho::app {

struct BatchTotals {
  std::int64_t answered = 0;
  std::int64_t cut = 0;  // of the answered: a choice reached max_tokens or the context's end
  std::int64_t refused = 0;
  std::int64_t skipped = 0;          // done by an earlier run …
  std::int64_t skipped_refused = 0;  // … and of these, refused
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t generated_tokens = 0;
};

class BatchProgress {
 public:
  explicit BatchProgress(double load_s) : load_s_(load_s) {}

  void show(const BatchTotals& totals, std::size_t running, const LineReader& input);
  void finish(const BatchTotals& totals);

 private:
  using Clock = std::chrono::steady_clock;

  ProgressBar bar_{"batch"};
  double load_s_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = begin_;
  std::int64_t generated_ = 0;
};

}  // namespace koho::app
