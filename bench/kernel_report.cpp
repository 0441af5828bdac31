// SPDX-License-Identifier: Apache-2.0
#include "bench/kernel_report.h"

#include <algorithm>

#include <fmt/format.h>

namespace koho::bench {
namespace {

std::string share(double part_ms, double whole_ms) {
  return fmt::format("{:.3f} ms ({:.1f} %)", part_ms, 100.0 * part_ms / whole_ms);
}

}  // namespace

double KernelReport::classes_ms() const {
  double sum = 0.0;
  for (const Class& entry : classes) sum += entry.busy_ms;
  return sum;
}

KernelSummary median_replay(std::vector<KernelSummary> replays) {
  const auto middle = replays.begin() + static_cast<std::ptrdiff_t>(replays.size() / 2);
  std::nth_element(replays.begin(), middle, replays.end(),
                   [](const KernelSummary& a, const KernelSummary& b) {
                     return a.busy_ns + a.idle_ns < b.busy_ns + b.idle_ns;
                   });
  return *middle;
}

std::string text_of(const KernelReport& report, double step_ms) {
  if (report.empty()) return {};
  const double traced_ms = report.busy_ms() + report.idle_ms();
  std::string text = fmt::format(
      "  {} kernels in one graph of {:.3f} ms ({:.3f} ms recorded); in sum {:.3f} ms, waiting for "
      "the one before included; busy {:.3f} ms; none runs for {}\n"
      "  the step less the kernels' sum {}, less the busy time {}",
      report.step.count, report.graph_ms, traced_ms, report.sum_ms(), report.busy_ms(),
      share(report.idle_ms(), traced_ms), share(step_ms - report.sum_ms(), step_ms),
      share(step_ms - report.busy_ms(), step_ms));
  if (!report.classes.empty())
    text += fmt::format(", less the classes' busy times, each in a graph of its own, {}",
                        share(step_ms - report.classes_ms(), step_ms));
  text +=
      fmt::format("\n  {:>9} {:>9} {:>9} {:>6}  kernel\n", "busy ms", "sum ms", "idle ms", "count");
  for (const KernelSummary::Row& row : report.step.rows)
    text +=
        fmt::format("  {:9.4f} {:9.4f} {:9.4f} {:6}  {}\n", static_cast<double>(row.busy_ns) / 1e6,
                    static_cast<double>(row.sum_ns) / 1e6, static_cast<double>(row.idle_ns) / 1e6,
                    row.count, row.name);
  for (const KernelReport::Class& entry : report.classes)
    text += fmt::format("  {:9.4f} busy in a graph of its own: {}\n", entry.busy_ms, entry.name);
  return text;
}

nlohmann::ordered_json json_of(const KernelReport& report) {
  const auto us = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
  nlohmann::ordered_json json = {{"graph_us", 1e3 * report.graph_ms},
                                 {"sum_us", us(report.step.sum_ns)},
                                 {"busy_us", us(report.step.busy_ns)},
                                 {"idle_us", us(report.step.idle_ns)}};
  if (!report.classes.empty()) json["classes_us"] = 1e3 * report.classes_ms();
  for (const KernelSummary::Row& row : report.step.rows)
    json["kernels"].push_back({{"kernel", row.name},
                               {"count", row.count},
                               {"sum_us", us(row.sum_ns)},
                               {"busy_us", us(row.busy_ns)},
                               {"idle_us", us(row.idle_ns)}});
  for (const KernelReport::Class& entry : report.classes)
    json["classes"].push_back({{"class", entry.name}, {"busy_us", 1e3 * entry.busy_ms}});
  return json;
}

}  // namespace koho::bench
