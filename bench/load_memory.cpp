// SPDX-License-Identifier: Apache-2.0
#include "bench/load_memory.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>

#include "bench/load_gpu_memory.h"

namespace koho::bench {
namespace {

double growth_percent(const std::vector<double>& values) {
  return 100.0 * (std::ranges::max(values) / values.front() - 1.0);
}

/// Without answers kept for replay: their cache has a limit, and is not full by the first stop.
std::vector<double> without(std::vector<double> mb, const std::vector<double>& turns_mb) {
  for (std::size_t i = 0; i < mb.size(); ++i) mb[i] -= turns_mb[i];
  return mb;
}

/// What the caches of turns and prompts hold at a stop differs; a trend does not.
double trend_percent(const std::vector<double>& values) {
  const auto few = static_cast<std::ptrdiff_t>(std::min<std::size_t>(values.size(), 5));
  const auto sum = [few](auto first) { return std::accumulate(first, first + few, 0.0); };
  return 100.0 * (sum(values.end() - few) / sum(values.begin()) - 1.0);
}

}  // namespace

void MemoryAtStops::look(const LoadServer& server) {
  if (const std::int64_t heap = server.heap_bytes(); heap >= 0)
    heap_mb_.push_back(static_cast<double>(heap) / 1e6);
  const std::vector<pid_t>& processes = server.processes();
  each_mb_.resize(processes.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const double mb = static_cast<double>(LoadServer::resident_bytes_of(processes[i])) / 1e6;
    each_mb_[i].push_back(mb);
    sum += mb;
  }
  resident_mb_.push_back(sum);
  turns_mb_.push_back(std::max(server.metric("koho_turns_kept_bytes"), 0.0) / 1e6);
  const std::string device = server.device();
  if (device.empty() || device.starts_with("cpu")) return;
  if (const std::optional<GpuMemory> gpu = gpu_memory_of(processes)) {
    gpu_mb_.push_back(static_cast<double>(gpu->mib) * 1.048576);
    gpu_of_processes_ = gpu_of_processes_ && gpu->of_processes;
  }
}

void MemoryAtStops::report(Findings& findings) const {
  findings.list("resident_mb", resident_mb_);
  findings.list("turns_mb", turns_mb_);
  for (std::size_t i = 1; i < each_mb_.size(); ++i)
    findings.list(fmt::format("resident_mb_worker_{}", i), each_mb_[i]);
  findings.in_full_at_most("resident_growth_percent",
                           growth_percent(without(resident_mb_, turns_mb_)), 1.0);
  // A small process beside a large one.
  double trend = trend_percent(without(each_mb_.front(), turns_mb_));
  for (std::size_t i = 1; i < each_mb_.size(); ++i)
    trend = std::max(trend, trend_percent(each_mb_[i]));
  findings.in_full_at_most("process_growth_percent", trend, 5.0);
  if (!heap_mb_.empty()) {
    findings.list("heap_mb", heap_mb_);
    findings.in_full_at_most("heap_growth_percent", trend_percent(heap_mb_), 5.0);
  }
  if (!gpu_mb_.empty()) {
    findings.list(gpu_of_processes_ ? "gpu_mb" : "gpu_mb_of_all", gpu_mb_);
    // All of it is taken at the start.
    findings.in_full_at_most("gpu_growth_mb", std::ranges::max(gpu_mb_) - gpu_mb_.front(), 0.0);
  }
}

}  // namespace koho::bench
