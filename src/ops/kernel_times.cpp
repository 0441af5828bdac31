// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel_times.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"

namespace koho {

KernelSummary summarise(std::span<const KernelTime> kernels) {
  std::vector<std::size_t> order(kernels.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return kernels[a].begin_ns < kernels[b].begin_ns;
  });
  KernelSummary summary;
  std::map<std::string, KernelSummary::Row> rows;
  std::int64_t covered_ns = kernels.empty() ? 0 : kernels[order[0]].begin_ns;  // until when
  for (const std::size_t i : order) {
    const KernelTime& kernel = kernels[i];
    KOHO_CHECK(kernel.end_ns >= kernel.begin_ns);
    KernelSummary::Row& row = rows[kernel.name];
    const std::int64_t idle_ns = std::max<std::int64_t>(kernel.begin_ns - covered_ns, 0);
    const std::int64_t alone_from_ns = std::max(kernel.begin_ns, covered_ns);
    const std::int64_t busy_ns = std::max<std::int64_t>(kernel.end_ns - alone_from_ns, 0);
    ++row.count;
    row.sum_ns += kernel.end_ns - kernel.begin_ns;
    row.busy_ns += busy_ns;
    row.idle_ns += idle_ns;
    covered_ns = std::max(covered_ns, kernel.end_ns);
  }
  for (auto& [name, row] : rows) {
    row.name = name;
    summary.count += row.count;
    summary.sum_ns += row.sum_ns;
    summary.busy_ns += row.busy_ns;
    summary.idle_ns += row.idle_ns;
    summary.rows.push_back(row);
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const KernelSummary::Row& a, const KernelSummary::Row& b) {
                     return a.busy_ns > b.busy_ns;
                   });
  return summary;
}

}  // namespace koho
