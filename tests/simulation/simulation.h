// SPDX-License-Identifier: Apache-2.0
// The deterministic simulation: the real engine loop, scheduler, page pool, prefix cache and plans,
// driven by one seed against simulated clients, clock and ranks (docs/simulation.md).
#pragma once

#include <cstdint>
#include <string>

namespace koho::simulation {

struct Options {
  std::uint64_t seed = 0;
  std::int64_t events = 0;
  /// Divides the limits: 100 leaves eight pages and steps of one sequence.
  std::int32_t shrink = 1;
};

struct Report {
  std::int64_t events = 0;
  std::uint64_t trace = 0;              // hash of everything that was observed, in order
  std::string violation;                // empty: every rule held
  std::int64_t worlds = 0;              // engines built and drained
  std::int64_t partitioned_worlds = 0;  // of these, whose ranks hold pages of their own
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t steps = 0;
  std::int64_t preempted = 0;
  std::int64_t forked = 0;
  std::int64_t deduplicated = 0;
  std::int64_t evicted = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t discarded = 0;
  std::int64_t device_failures = 0;
  std::int64_t pauses = 0;
  std::int64_t cancelled = 0;
  std::int64_t failed = 0;
  std::int64_t constrained = 0;     // requests with a grammar
  std::int64_t late_masks = 0;      // steps whose masks came after their plan
  std::int64_t stop_sequences = 0;  // choices that one ended
  std::int64_t frozen_rows = 0;     // planned before it was known that their output had ended
  std::int64_t bounded_steps = 0;   // with more than the least prefill under a bound between tokens
};

/// Runs until `events` events have happened or a rule is broken.
Report simulate(const Options& options);

}  // namespace koho::simulation
