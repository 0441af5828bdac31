// SPDX-License-Identifier: Apache-2.0
// What the kernels' own times say of a step: where a device waits between kernels, and which
// kernels the step's time belongs to. Figures and words only; latency_command.cpp
// records them.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "ops/kernel_times.h"

namespace koho::bench {

struct KernelReport {
  KernelSummary step;     // the kernels of the whole step as one graph, of one replay
  double graph_ms = 0.0;  // of a replay of that graph after another, nothing recorded
  struct Class {
    std::string name;
    double busy_ms = 0.0;  // of the class's kernels as a graph of their own
  };
  std::vector<Class> classes;

  bool empty() const { return step.count == 0; }
  double sum_ms() const { return static_cast<double>(step.sum_ns) / 1e6; }
  double busy_ms() const { return static_cast<double>(step.busy_ns) / 1e6; }
  double idle_ms() const { return static_cast<double>(step.idle_ns) / 1e6; }
  double classes_ms() const;
};

/// The replay in the middle by how long it lasted. Requires: at least one.
KernelSummary median_replay(std::vector<KernelSummary> replays);

/// Lines for a person; `step_ms` is the time of a whole step as the engine runs them.
std::string text_of(const KernelReport& report, double step_ms);

/// The same for programs: {"graph_us", "sum_us", "busy_us", "idle_us", "classes_us", "kernels":
/// […], "classes": […]}.
nlohmann::ordered_json json_of(const KernelReport& report);

}  // namespace koho::bench
