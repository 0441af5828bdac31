// SPDX-License-Identifier: Apache-2.0
// simulate: runs seeds by hand and in CI, prints the trace hash of each broken one, and exits with
// 1 if a rule was broken.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/core.h>

#include "simulation.h"

namespace {

constexpr std::string_view kUsage =
    "simulate [--seeds N] [--first-seed N] [--events N] [--shrink N] [--twice]\n"
    "  --seeds N       how many seeds (64)\n"
    "  --first-seed N  the first of them (1)\n"
    "  --events N      events a seed (312500)\n"
    "  --shrink N      limits divided by N: 100 leaves 8 pages and one sequence a step (1)\n"
    "  --twice         runs every seed twice and compares the traces\n";

bool read_number(int argc, char** argv, int& i, std::string_view name, std::int64_t& value) {
  if (argv[i] != name || i + 1 == argc) return false;
  char* end = nullptr;
  value = std::strtoll(argv[++i], &end, 10);
  return *end == '\0' && value > 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t seeds = 64;
  std::int64_t first = 1;
  std::int64_t events = 312500;
  std::int64_t shrink = 1;
  bool twice = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--twice") {
      twice = true;
      continue;
    }
    if (read_number(argc, argv, i, "--seeds", seeds)) continue;
    if (read_number(argc, argv, i, "--first-seed", first)) continue;
    if (read_number(argc, argv, i, "--events", events)) continue;
    if (read_number(argc, argv, i, "--shrink", shrink)) continue;
    fmt::print(stderr, "{}", kUsage);
    return 2;
  }

  using koho::simulation::Report;
  const auto start = std::chrono::steady_clock::now();
  Report sum;
  int broken = 0;
  for (std::int64_t seed = first; seed < first + seeds; ++seed) {
    const koho::simulation::Options options{.seed = static_cast<std::uint64_t>(seed),
                                            .events = events,
                                            .shrink = static_cast<std::int32_t>(shrink)};
    Report report = koho::simulation::simulate(options);
    if (twice && report.violation.empty() &&
        koho::simulation::simulate(options).trace != report.trace)
      report.violation = "the same seed gave another trace";
    if (!report.violation.empty()) {
      ++broken;
      fmt::print("seed {} after {} events: {}\n", seed, report.events, report.violation);
    }
    sum.events += report.events;
    sum.trace = sum.trace * 31 + report.trace;
    sum.worlds += report.worlds;
    sum.partitioned_worlds += report.partitioned_worlds;
    sum.requests += report.requests;
    sum.tokens += report.tokens;
    sum.steps += report.steps;
    sum.preempted += report.preempted;
    sum.forked += report.forked;
    sum.deduplicated += report.deduplicated;
    sum.evicted += report.evicted;
    sum.hit_tokens += report.hit_tokens;
    sum.discarded += report.discarded;
    sum.device_failures += report.device_failures;
    sum.pauses += report.pauses;
    sum.cancelled += report.cancelled;
    sum.failed += report.failed;
    sum.constrained += report.constrained;
    sum.late_masks += report.late_masks;
    sum.stop_sequences += report.stop_sequences;
    sum.frozen_rows += report.frozen_rows;
    sum.bounded_steps += report.bounded_steps;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{} events in {:.1f} s, {:.0f} events/s, trace {:016x}\n"
      "{} worlds ({} of several ranks), {} requests ({} cancelled, {} failed), {} tokens, {} "
      "steps\n"
      "{} preempted, {} forked, {} pages deduplicated, {} evicted, {} tokens found cached\n"
      "{} requests with a grammar, {} steps with late masks, {} under a bound in time\n"
      "{} choices ended by a stop sequence, {} rows frozen\n"
      "{} rows discarded, {} devices lost, {} readers paused; {} seeds broke a rule\n",
      sum.events, seconds, static_cast<double>(sum.events) * (twice ? 2 : 1) / seconds, sum.trace,
      sum.worlds, sum.partitioned_worlds, sum.requests, sum.cancelled, sum.failed, sum.tokens,
      sum.steps, sum.preempted, sum.forked, sum.deduplicated, sum.evicted, sum.hit_tokens,
      sum.constrained, sum.late_masks, sum.bounded_steps, sum.stop_sequences, sum.frozen_rows,
      sum.discarded, sum.device_failures, sum.pauses, broken);
  return broken == 0 ? 0 : 1;
}
