// SPDX-License-Identifier: Apache-2.0
// The engine's counters, gauges and histograms, for the metrics page: plain data, copied as a
// whole. Counters never fall.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace koho {

/// Durations from 1 ms doubling to 2^21 ms, and the rest.
struct Histogram {
  static constexpr std::size_t kBounds = 22;

  std::array<std::uint64_t, kBounds + 1>
      counts{};  // counts[i]: at most bound_us(i), above the last
  std::uint64_t count = 0;
  double sum_us = 0.0;

  static constexpr std::int64_t bound_us(std::size_t i) { return std::int64_t{1000} << i; }
  void add(std::int64_t duration_us) {
    std::size_t i = 0;
    while (i < kBounds && duration_us > bound_us(i)) ++i;
    ++counts[i];
    ++count;
    sum_us += static_cast<double>(duration_us);
  }
};

/// Durations counted finely enough for percentiles: bounds rise by 2^(1/4) from 62.5 us, so that a
/// percentile, interpolated between two bounds, is less than 19 % off.
struct LatencyHistogram {
  static constexpr std::size_t kBounds = 100;  // the last one is half an hour
  static constexpr double kFirstUs = 62.5;

  std::array<std::uint64_t, kBounds + 1> counts{};  // as Histogram::counts

  static double bound_us(std::size_t i) { return kFirstUs * std::exp2(static_cast<double>(i) / 4); }
  void add(std::int64_t duration_us) {
    const double steps = 4 * std::log2(std::max(static_cast<double>(duration_us), 1.0) / kFirstUs);
    ++counts[static_cast<std::size_t>(std::clamp(std::ceil(steps), 0.0, double{kBounds}))];
  }
  /// What was added since `before`, an earlier copy.
  LatencyHistogram since(const LatencyHistogram& before) const {
    LatencyHistogram difference;
    for (std::size_t i = 0; i <= kBounds; ++i) difference.counts[i] = counts[i] - before.counts[i];
    return difference;
  }
  /// The duration that the share `share` (0 to 1) does not exceed; -1 where nothing was added.
  double percentile_us(double share) const {
    double total = 0.0;
    for (const std::uint64_t count : counts) total += static_cast<double>(count);
    if (total <= 0.0) return -1.0;
    double left = share * total;
    std::size_t i = 0;
    while (i < kBounds && left > static_cast<double>(counts[i]))
      left -= static_cast<double>(counts[i++]);
    const double part = counts[i] == 0 ? 1.0 : left / static_cast<double>(counts[i]);
    return bound_us(i) * std::exp2((part - 1.0) / 4);
  }
};

/// Values of any unit, counted by bounds that rise; those below are vLLM's.
struct BoundedHistogram {
  static constexpr std::size_t kBoundsMax = 24;

  std::span<const double> bounds;
  /// counts[i]: at most bounds[i] and above the bound before; behind the last bound: the rest.
  std::array<std::uint64_t, kBoundsMax + 1> counts{};
  std::uint64_t count = 0;
  double sum = 0.0;

  void add(double value) {
    ++counts[static_cast<std::size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())];
    ++count;
    sum += value;
  }
};

inline constexpr std::array<double, 17> kTokenBounds{
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
inline constexpr std::array<double, 13> kStepTokenBounds{1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};
inline constexpr std::array<double, 5> kChoiceBounds{1, 2, 5, 10, 20};
inline constexpr std::array<double, 19> kTokenSecondsBounds{
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
    0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
inline constexpr std::array<double, 21> kRequestSecondsBounds{
    0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

struct Statistics {
  // ---- counters
  std::uint64_t requests_accepted = 0;
  std::uint64_t requests_completed = 0;
  std::uint64_t requests_cancelled = 0;
  std::uint64_t requests_failed = 0;
  // Every choice of every accepted request ends as one of four; request_total and answer_lengths
  // count it then. The other histograms of requests count a request when it ends.
  std::uint64_t choices_stopped = 0;    // by a stop token or string
  std::uint64_t choices_full = 0;       // by max_tokens
  std::uint64_t choices_cancelled = 0;  // with their request, which was cancelled …
  std::uint64_t choices_failed = 0;     // … or failed
  std::uint64_t prompt_tokens = 0;      // of accepted requests
  std::uint64_t cached_tokens = 0;      // of these, found computed
  std::uint64_t computed_tokens = 0;    // by collected steps, all rows
  std::uint64_t sampled_tokens = 0;     // delivered to streams
  std::uint64_t rows_discarded = 0;     // results of rows whose sequence had ended
  std::uint64_t results_stale = 0;      // late or repeated answers of ranks
  std::uint64_t steps = 0;              // collected
  std::uint64_t decode_steps = 0;       // of these, with a decoded row
  std::uint64_t decode_rows = 0;        // … and their decoded rows
  std::uint64_t device_failures = 0;
  std::uint64_t recoveries = 0;
  std::uint64_t pauses = 0;  // slow readers
  std::uint64_t admitted = 0;
  std::uint64_t resumed = 0;
  std::uint64_t preempted = 0;
  std::uint64_t forked = 0;
  std::uint64_t evicted_pages = 0;
  std::uint64_t prefix_queried_tokens = 0;
  std::uint64_t prefix_hit_tokens = 0;

  // ---- gauges
  std::int32_t requests_live = 0;
  std::int32_t running = 0;  // sequences, as the rest
  std::int32_t waiting = 0;
  std::int32_t held = 0;
  std::int32_t decode_rows_max = 0;  // the largest batch of any step
  std::int32_t pages_total = 0;
  std::int32_t pages_free = 0;
  std::int32_t pages_cached = 0;  // idle, found by the prefix cache
  bool device_up = true;
  bool broken = false;  // recovery was given up

  // ---- histograms, of ended requests; of times only where there was a token
  Histogram time_to_first_token;
  Histogram inter_token;                      // between two tokens of one choice
  LatencyHistogram time_to_first_token_fine;  // the same two, for percentiles
  LatencyHistogram inter_token_fine;
  Histogram request_total;  // of every choice
  Histogram queued;
  Histogram prefill;
  Histogram decode;
  BoundedHistogram inference_s{kRequestSecondsBounds};     // prefill and decode
  BoundedHistogram time_per_token_s{kTokenSecondsBounds};  // a request's mean, behind its first
  BoundedHistogram prompt_lengths{kTokenBounds};
  BoundedHistogram answer_lengths{kTokenBounds};   // of every choice
  BoundedHistogram longest_answers{kTokenBounds};  // of every request
  BoundedHistogram tokens_asked{kTokenBounds};     // max_tokens
  BoundedHistogram choices_asked{kChoiceBounds};   // n

  // ---- histograms, of collected steps
  BoundedHistogram step_tokens{kStepTokenBounds};
};

}  // namespace koho
