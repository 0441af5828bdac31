// SPDX-License-Identifier: Apache-2.0
// What a server's processes hold, from stop to stop of a long run: host memory by process, heap
// where it is known, memory of GPUs where there are any.
#pragma once

#include <vector>

#include "bench/load_scenarios.h"
#include "bench/load_server.h"

namespace koho::bench {

class MemoryAtStops {
 public:
  void look(const LoadServer& server);
  /// Lists it, and misses what has grown since the first stop. Requires: look() was called.
  void report(Findings& findings) const;

 private:
  std::vector<double> heap_mb_;
  std::vector<double> resident_mb_;           // of all processes
  std::vector<double> turns_mb_;              // of it, answers kept for replay
  std::vector<std::vector<double>> each_mb_;  // of each process, by stop
  std::vector<double> gpu_mb_;
  bool gpu_of_processes_ = true;
};

}  // namespace koho::bench
