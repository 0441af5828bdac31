// SPDX-License-Identifier: Apache-2.0
// Measures each kernel's own time, also inside CUDA graphs, with CUPTI. Only benchmarks use it.
// libcupti is opened when a profiler starts, so nothing else depends on it. Builds without CUDA or
// CUPTI's headers have no_kernel_profiler.cpp instead.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/kernel_times.h"

namespace koho {

/// Records every kernel, copy and fill that the process runs while it lives. Profiling slows the
/// device a little: compare with times taken without. Threads: one at a time.
class KernelProfiler {
 public:
  virtual ~KernelProfiler() = default;
  /// What has ended since the last call, in no certain order. Requires: the device is synchronised.
  /// Errors: device_error (CUPTI failed, had no room for a record or no times for it).
  virtual Result<std::vector<KernelTime>> take() = 0;
};

/// Starts profiling. At most one profiler lives at a time. Graphs captured while it lives are seen
/// node by node. Errors: unsupported (this build, no libcupti, or a system that refuses it).
Result<std::unique_ptr<KernelProfiler>> make_kernel_profiler();

}  // namespace koho
