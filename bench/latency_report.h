// SPDX-License-Identifier: Apache-2.0
// What `koho bench latency` found out about one kind of step, as lines for a person and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/kernel_report.h"
#include "model/config.h"
#include "worker/worker.h"

namespace koho::bench {

/// What one kind of step gave.
struct LatencyReport {
  std::string step;  // "decode", "prefill", or "mixed": decodes beside a prompt
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t context = 0;
  double ms = 0.0;
  double host_ms = 0.0;                    // of enqueueing
  Worker::Traffic traffic;                 // of the last step
  std::optional<double> distinct_experts;  // a layer, mean; none: not counted
  struct Row {
    std::string name;
    double ms;
    double bytes;
  };
  std::vector<Row> classes;
  KernelReport kernels;
};

/// Prints the report. `bandwidth`: bytes a second that the device reads.
void print(const LatencyReport& report, double bandwidth, const ModelConfig& config);

/// The same for programs, a row of a result file.
nlohmann::ordered_json json_of(const LatencyReport& report, double bandwidth);

}  // namespace koho::bench
