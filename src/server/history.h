// SPDX-License-Identifier: Apache-2.0
// What the dashboard's charts show of the time before the page was opened: rings of samples of the
// engine's statistics, for five minutes, an hour and a day. Bounded memory: about 150 KiB.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "engine/statistics.h"

namespace koho::server {

class History {
 public:
  /// Whether a second has passed since the last sample. True for one caller only. Threads: any.
  bool is_due(std::int64_t now_us);
  /// Adds a sample to every ring whose period has passed. Threads: any.
  void add(const Statistics& now, std::int64_t now_us, std::int64_t unix_s);
  /// The ring of `period_s` as a JSON object: its period, the samples' fields by name, and the
  /// samples, oldest first; "" if there is no such ring. Threads: any.
  std::string json(std::int64_t period_s) const;
  /// The newest sample of the finest ring, as json() writes it; "null" before the first.
  std::string newest_json() const;

 private:
  struct Percentiles {
    float p50 = -1.0F;  // ms; -1: nothing was measured
    float p95 = -1.0F;
    float p99 = -1.0F;
  };
  struct Sample {
    std::int64_t unix_s = 0;  // the end of the period, of which the rest speaks
    float running = 0.0F;
    float waiting = 0.0F;
    float prefill_rate = 0.0F;  // tokens/s
    float decode_rate = 0.0F;
    float kv_used = 0.0F;    // share of the pages that requests hold
    float kv_cached = 0.0F;  // … and that only the prefix cache holds
    float cached = -1.0F;    // share of the prompts' tokens; -1: no prompt came
    std::int64_t completed = 0;
    std::int64_t cancelled = 0;
    std::int64_t failed = 0;
    Percentiles first_token;
    Percentiles inter_token;
  };
  struct Ring {
    std::int64_t period_s;
    std::size_t samples_max;
    std::deque<Sample> samples{};
    Statistics before{};  // at the last sample
    std::int64_t before_us = -1;
  };

  static Percentiles percentiles(const LatencyHistogram& histogram);
  static Sample sample_of(const Ring& ring, const Statistics& now, std::int64_t now_us);
  static void append(std::string& out, const Sample& sample);

  std::atomic<std::int64_t> next_us_{0};
  mutable std::mutex mutex_;
  std::array<Ring, 3> rings_{Ring{.period_s = 1, .samples_max = 300},
                             Ring{.period_s = 10, .samples_max = 360},
                             Ring{.period_s = 240, .samples_max = 360}};
};

}  // namespace koho::server
