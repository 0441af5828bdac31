// SPDX-License-Identifier: Apache-2.0
// The GPUs' memory that processes use, as nvidia-smi tells it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <sys/types.h>

namespace koho::bench {

struct GpuMemory {
  std::int64_t mib = 0;
  bool of_processes = false;  // else of all that runs on this machine's GPUs
};

/// Nothing without nvidia-smi. It may not know the processes (those of a container have other
/// numbers outside); then the whole memory in use counts.
std::optional<GpuMemory> gpu_memory_of(std::span<const pid_t> processes);

/// Of "pid, MiB" lines, the sum of those of `processes`; nothing if none is theirs.
std::optional<std::int64_t> mib_of(std::span<const pid_t> processes, std::string_view lines);

}  // namespace koho::bench
