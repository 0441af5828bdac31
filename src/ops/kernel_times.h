// SPDX-License-Identifier: Apache-2.0
// Adds up the times of a step's kernels: how long the device was busy, and how long it was idle
// between kernels. It refuses to record anything: a backend does (cuda/profile/kernel_profiler.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace koho {

/// One kernel, copy or fill, on the device's clock. A kernel that starts under programmatic
/// dependent launch, before its predecessor has ended, counts its waiting too.
struct KernelTime {
  std::string name;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The kernels of one run together. busy_ns + idle_ns is the time from the first begin to the last
/// end. sum_ns may exceed it, since kernels overlap.
struct KernelSummary {
  std::int64_t count = 0;
  std::int64_t sum_ns = 0;   // all kernels' times added
  std::int64_t busy_ns = 0;  // time in which at least one ran
  std::int64_t idle_ns = 0;  // time between the first and the last in which none ran
  struct Row {
    std::string name;
    std::int64_t count = 0;
    std::int64_t sum_ns = 0;
    std::int64_t busy_ns = 0;  // its part after every kernel that began earlier had ended
    std::int64_t idle_ns = 0;  // time right before one of these in which none ran
  };
  // One row per kernel name, the longest busy_ns first. The rows' busy_ns and idle_ns add up to the
  // run's.
  std::vector<Row> rows;
};

/// Takes kernels in any order. Requires: none ends before it begins.
KernelSummary summarise(std::span<const KernelTime> kernels);

}  // namespace koho
