// SPDX-License-Identifier: Apache-2.0
// What `koho bench latency` found of one kind of step, and how it is said: to a person, beside what
// the memory allows, and to programs. latency_bench.cpp measures it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/kernel_report.h"
#include "model/config.h"
#include "model/sharding.h"
#include "ops/trace.h"
#include "tensor/dtype.h"
#include "worker/worker.h"

namespace koho::bench {

/// How many different experts a step's tokens chose in a layer, mean over the sparse layers.
struct ExpertLoad {
  double distinct = 0.0;        // on all ranks together
  std::vector<double> of_rank;  // whole experts: each rank's share of them
  double slowest = 0.0;         // whole experts: of the rank that has most in a layer
};

/// What one kind of step gave.
struct LatencyReport {
  std::string step;  // "decode", "prefill", or "mixed": decodes beside a prompt
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t context = 0;
  double ms = 0.0;
  double host_ms = 0.0;               // of enqueueing
  Worker::Traffic traffic;            // of the last step
  std::optional<ExpertLoad> experts;  // none: not counted
  struct Row {
    std::string name;
    double ms;
    double bytes;
  };
  std::vector<Row> classes;
  KernelReport kernels;
};

/// A class of operators and the bytes it has to read.
struct OpClass {
  std::string name;
  Trace::Selection selects;
  double bytes = 0.0;
};

/// The classes of a rank's step and what each has to read. Requires: report.experts, but for a
/// model without experts.
std::vector<OpClass> op_classes(const ModelConfig& config,
                                const Shard& shard,
                                DType kv_dtype,
                                const LatencyReport& report);

/// Of what the steps were.
struct LatencyConditions {
  const ModelConfig& config;
  Shard shard;
  bool alone = false;      // the other ranks are not there
  double bandwidth = 0.0;  // bytes a second that the device reads
};

/// What the other ranks add to a step of a rank that is alone.
struct AbsentRanks {
  std::int64_t all_reduces = 0;
  double links_ms = 0.0;     // of all all-reduces, each as long as it was measured between GPUs
  std::string links_source;  // where
  // For the slowest rank of each layer, whose experts are more; none: it takes the classes to know.
  std::optional<double> waiting_ms;
};

/// Errors: none is known (no measurement of links) is an empty source.
AbsentRanks absent_ranks(const LatencyReport& report, const LatencyConditions& conditions);

/// For a person.
std::string text_of(const LatencyReport& report, const LatencyConditions& conditions);

/// A row of bench/results.
nlohmann::ordered_json json_of(const LatencyReport& report, const LatencyConditions& conditions);

}  // namespace koho::bench
