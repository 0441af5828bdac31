// SPDX-License-Identifier: Apache-2.0
#include "bench/latency_report.h"

#include <cmath>
#include <cstdio>

namespace koho::bench {
namespace {

void print_classes(const LatencyReport& report, double bandwidth, const ModelConfig& config) {
  const double experts = static_cast<double>(config.n_routed_experts);
  const double uniform =
      experts * (1.0 - std::pow(1.0 - static_cast<double>(config.num_experts_per_tok) / experts,
                                static_cast<double>(report.tokens)));
  std::printf("  distinct experts a layer %.1f, of uniform routing %.1f\n",
              report.distinct_experts.value_or(0.0), uniform);
  double sum = 0.0;
  double bound = 0.0;
  for (const LatencyReport::Row& row : report.classes) {
    const double least = 1e3 * row.bytes / bandwidth;
    sum += row.ms;
    bound += least;
    std::printf("  %-20s %9.3f ms  %8.3f GB  bound %8.3f ms  %5.1f %%\n", row.name.c_str(), row.ms,
                row.bytes / 1e9, least, row.ms > 0 ? 100.0 * least / row.ms : 0.0);
  }
  std::printf("  %-20s %9.3f ms; bound %.3f ms, %.1f %% of the step\n", "sum", sum, bound,
              100.0 * bound / report.ms);
}

}  // namespace

void print(const LatencyReport& report, double bandwidth, const ModelConfig& config) {
  std::printf(
      "\n%s  batch %lld  tokens %lld  context %lld: %.3f ms, %.0f tok/s (enqueued in %.3f ms; "
      "%lld bytes to the device, %lld back)\n",
      report.step.c_str(), static_cast<long long>(report.batch),
      static_cast<long long>(report.tokens), static_cast<long long>(report.context), report.ms,
      1e3 * static_cast<double>(report.tokens) / report.ms, report.host_ms,
      static_cast<long long>(report.traffic.sent), static_cast<long long>(report.traffic.fetched));
  if (!report.classes.empty()) print_classes(report, bandwidth, config);
  std::printf("%s", text_of(report.kernels, report.ms).c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json json_of(const LatencyReport& report, double bandwidth) {
  nlohmann::ordered_json row = {
      {"op", "step_" + report.step},
      {"shape", {{"batch", report.batch}, {"tokens", report.tokens}, {"context", report.context}}},
      {"us", 1e3 * report.ms},
      {"host_us", 1e3 * report.host_ms},
      {"bytes_sent", report.traffic.sent},
      {"bytes_fetched", report.traffic.fetched}};
  if (report.distinct_experts) row["distinct_experts"] = *report.distinct_experts;
  for (const LatencyReport::Row& part : report.classes)
    row["classes"].push_back({{"class", part.name},
                              {"us", 1e3 * part.ms},
                              {"bytes", part.bytes},
                              {"bound_us", 1e6 * part.bytes / bandwidth}});
  if (!report.kernels.empty()) row["kernels"] = json_of(report.kernels);
  return row;
}

}  // namespace koho::bench
