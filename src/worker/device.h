// SPDX-License-Identifier: Apache-2.0
// Which machine a rank computes on: the one file that chooses between the CPU and the CUDA backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/load_progress.h"
#include "comm/communicator.h"
#include "comm/loopback_rank.h"
#include "comm/rendezvous.h"
#include "cpu/cpu_backend.h"
#include "ops/backend.h"
#include "ops/synthetic_tensor.h"

namespace koho {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Reads "cpu", "cuda" or "auto". "auto" is cuda in a build with CUDA on a machine with a GPU, else
/// cpu; a build with CUDA logs a warning when it falls back. A GPU that koho refuses stays chosen,
/// so that its own error is reported. Does not start the driver. Errors: invalid_argument.
Result<DeviceKind> choose_device(std::string_view name);
/// The same on a machine that has a GPU, or has none.
Result<DeviceKind> choose_device(std::string_view name, bool has_gpu);

/// Reads "auto", "peer" or "nccl". Errors: invalid_argument.
Result<CollectiveTransport> choose_collectives(std::string_view name);
std::string_view collectives_name(CollectiveTransport transport);

struct DeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  std::vector<int> devices{};  // GPUs, one for each rank or one for all; empty: the rank's number
  std::int64_t threads = 0;    // of all ranks together on the CPU; 0 = one a core
  CpuIsa isa = CpuIsa::automatic;
  std::optional<bool> deterministic{};             // CudaOptions::deterministic; the CPU always is
  bool portable_only = false;                      // CudaOptions::portable_only
  const SyntheticAddressMap* synthetic = nullptr;  // CudaOptions::synthetic
  CollectiveTransport collectives = CollectiveTransport::automatic;  // of several GPUs
  LoadProgress* progress = nullptr;  // CudaOptions::progress; the CPU computes with what is mapped
};

/// The GPU of a rank.
int device_of(const DeviceOptions& options, std::int64_t rank);

/// Makes the backend of one of `ranks` ranks: a share of the CPU's threads, or the rank's GPU.
/// Errors: those of make_cpu_backend and make_cuda_backend.
Result<std::unique_ptr<Backend>> make_backend(const DeviceOptions& options,
                                              std::int64_t rank,
                                              std::int64_t ranks);

/// The collectives of one rank on its backend, chosen here alone: nothing to do for one rank; over
/// host memory on the CPU, of threads or of processes as the ranks are; between GPUs as
/// `collectives` says. All ranks of the rendezvous call it together. Requires: backend and
/// rendezvous outlive it; a backend on CUDA is make_backend()'s. Errors: those of the rendezvous
/// and of make_cuda_communicator.
Result<std::unique_ptr<Communicator>> make_communicator(const DeviceOptions& options,
                                                        Backend& backend,
                                                        Rendezvous& rendezvous);

/// The communicator of a rank whose other ranks are not there, for measurements: what it sends to
/// them stays on its own device. Requires: backend and `alone` outlive it. Errors: unsupported (a
/// number of ranks), device_error.
Result<std::unique_ptr<Communicator>> make_loopback_communicator(const DeviceOptions& options,
                                                                 Backend& backend,
                                                                 LoopbackRendezvous& alone);

/// Whether `devices` says where the ranks are; looks at no device. Errors: invalid_argument;
/// unsupported (no CUDA in this build).
Status check_device_list(const DeviceOptions& options, std::int64_t ranks);

/// Whether every rank has its device. Called before any GPU is opened: ranks that share one need
/// settings of the driver, which this makes for this process. Errors: those of check_device_list
/// and cuda_memory_bytes.
Status check_devices(const DeviceOptions& options, std::int64_t ranks);

/// The name of rank 0's GPU, or the CPU backend's own description: "NVIDIA H200", "cpu avx512 2
/// threads". Errors: those of make_cpu_backend and cuda_properties.
Result<std::string> device_name(const DeviceOptions& options);

/// Limits::redecodes_output on this device: true of a GPU whose answers are not to depend on their
/// batch, as DeviceOptions::deterministic says or leaves to it. Errors: those of cuda_properties.
Result<bool> redecodes_output(const DeviceOptions& options);

/// Memory of rank 0's GPU, used or not; on the CPU the host's. Errors: those of cuda_memory_bytes.
Result<std::int64_t> device_memory_bytes(const DeviceOptions& options);

}  // namespace koho
