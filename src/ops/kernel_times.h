// SPDX-License-Identifier: Apache-2.0
// What the times of a step's kernels add up to: how long a device was busy and how long it waited
// between kernels. Times only; who records them is a backend's affair (cuda/profile/kernel_profiler.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace koho {

/// One kernel, copy or fill, on the device's clock. Of kernels that are launched before the one
/// before has ended (programmatic dependent launch) it holds their waiting too.
struct KernelTime {
  std::string name;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// Kernels of one run, taken together. busy_ns + idle_ns is the time from the first begin to the
/// last end; sum_ns may exceed it, since kernels overlap.
struct KernelSummary {
  std::int64_t count = 0;
  std::int64_t sum_ns = 0;   // of all kernels' times
  std::int64_t busy_ns = 0;  // in which at least one ran
  std::int64_t idle_ns = 0;  // between the first and the last, in which none ran
  struct Row {
    std::string name;
    std::int64_t count = 0;
    std::int64_t sum_ns = 0;
    std::int64_t busy_ns = 0;  // after every kernel that began before had ended
    std::int64_t idle_ns = 0;  // in which none ran, right before one of these
  };
  std::vector<Row> rows;  // a name each, the longest busy_ns first; busy_ns and idle_ns add up to
                          // the whole's
};

/// Takes kernels in any order. Requires: none ends before it begins.
KernelSummary summarise(std::span<const KernelTime> kernels);

}  // namespace koho
