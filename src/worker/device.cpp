// SPDX-License-Identifier: Apache-2.0
#include "worker/device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <span>
#include <unistd.h>
#include <utility>

#include "base/log.h"
#include "base/processors.h"
#include "comm/loopback_rank.h"
#include "comm/one_rank.h"
#include "comm/process_ranks.h"
#include "comm/thread_ranks.h"
#include "cuda/cuda_backend.h"

namespace koho {
namespace {

// How long a rank waits for the others inside a step. A step of a large prompt on a busy CPU may
// take minutes.
constexpr std::chrono::minutes kRankTimeout{10};

/// Whether the ranks are threads of one process. Errors: those of the rendezvous; unsupported (some
/// are).
Result<bool> are_threads(Rendezvous& rendezvous) {
  const auto mine = static_cast<std::int64_t>(getpid());
  std::vector<std::int64_t> all(static_cast<std::size_t>(rendezvous.ranks()));
  KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  const auto same = std::ranges::count(all, all.front());
  if (same == std::ssize(all)) return true;
  if (same == 1) return false;
  return make_error(ErrorCode::unsupported, "{} of {} ranks share a process: all do, or none", same,
                    all.size());
}

/// Whether the system has a GPU, by its device file: a process that only starts the workers does
/// not start the driver.
bool has_gpu_file() {
  constexpr int kGpusMax = 64;
  if (access("/dev/dxg", F_OK) == 0) return true;  // Windows' subsystem for Linux
  for (int gpu = 0; gpu < kGpusMax; ++gpu)
    if (access(("/dev/nvidia" + std::to_string(gpu)).c_str(), F_OK) == 0) return true;
  return false;
}

}  // namespace

Result<DeviceKind> choose_device(std::string_view name) {
  return choose_device(name, name == "auto" && cuda_is_built() && has_gpu_file());
}

Result<DeviceKind> choose_device(std::string_view name, bool has_gpu) {
  if (name == "cpu") return DeviceKind::cpu;
  if (name == "cuda") return DeviceKind::cuda;
  if (name != "auto")
    return make_error(ErrorCode::invalid_argument, "device must be auto, cpu or cuda, found \"{}\"",
                      name);
  if (!cuda_is_built()) return DeviceKind::cpu;
  if (has_gpu) return DeviceKind::cuda;
  log::warning("device auto is the CPU: this machine has no NVIDIA GPU (/dev/nvidia0)");
  return DeviceKind::cpu;
}

Result<CollectiveTransport> choose_collectives(std::string_view name) {
  if (name == "auto") return CollectiveTransport::automatic;
  if (name == "peer") return CollectiveTransport::peer;
  if (name == "nccl") return CollectiveTransport::nccl;
  return make_error(ErrorCode::invalid_argument,
                    "collectives must be auto, peer or nccl, found \"{}\"", name);
}

std::string_view collectives_name(CollectiveTransport transport) {
  if (transport == CollectiveTransport::peer) return "peer";
  return transport == CollectiveTransport::nccl ? "nccl" : "auto";
}

int device_of(const DeviceOptions& options, std::int64_t rank) {
  if (options.devices.empty()) return static_cast<int>(rank);
  return options.devices[options.devices.size() == 1 ? 0 : static_cast<std::size_t>(rank)];
}

Status check_device_list(const DeviceOptions& options, std::int64_t ranks) {
  if (options.kind == DeviceKind::cuda && !cuda_is_built()) return cuda_memory_bytes(0).error();
  if (options.devices.empty()) return {};
  if (options.kind != DeviceKind::cuda)
    return make_error(ErrorCode::invalid_argument,
                      "devices are GPUs: give them with --device cuda, or leave them out");
  const auto count = std::ssize(options.devices);
  if (count != 1 && count != ranks)
    return make_error(ErrorCode::invalid_argument,
                      "{} devices for {} ranks: name one for all, or one for each rank", count,
                      ranks);
  for (const int device : options.devices)
    if (device < 0)
      return make_error(ErrorCode::invalid_argument, "a device is a GPU's number, found {}",
                        device);
  return {};
}

Result<std::unique_ptr<Backend>> make_backend(const DeviceOptions& options,
                                              std::int64_t rank,
                                              std::int64_t ranks) {
  if (options.kind == DeviceKind::cuda) {
    std::vector<int> devices;
    for (std::int64_t other = 0; other < ranks; ++other)
      devices.push_back(device_of(options, other));
    return make_cuda_backend({.device = device_of(options, rank),
                              .rank_devices = std::move(devices),
                              .rank = static_cast<std::size_t>(rank),
                              .portable_only = options.portable_only,
                              .deterministic = options.deterministic,
                              .synthetic = options.synthetic,
                              .progress = options.progress});
  }
  const std::int64_t threads =
      options.threads > 0 ? options.threads : std::int64_t{available_processors()};
  return make_cpu_backend({.threads = static_cast<int>(std::max<std::int64_t>(threads / ranks, 1)),
                           .isa = options.isa});
}

Result<std::unique_ptr<Communicator>> make_communicator(const DeviceOptions& options,
                                                        Backend& backend,
                                                        Rendezvous& rendezvous) {
  if (rendezvous.ranks() == 1) return std::unique_ptr<Communicator>(std::make_unique<OneRank>());
  if (backend.device().kind == DeviceId::Kind::cuda)
    return make_cuda_communicator(backend, rendezvous, options.collectives);
  KOHO_TRY_ASSIGN(const bool threads, are_threads(rendezvous));
  return threads ? join_thread_ranks(rendezvous, kRankTimeout)
                 : join_process_ranks(rendezvous, kRankTimeout);
}

Result<std::unique_ptr<Communicator>> make_loopback_communicator(const DeviceOptions& options,
                                                                 Backend& backend,
                                                                 LoopbackRendezvous& alone) {
  if (options.kind == DeviceKind::cuda) return make_cuda_loopback_communicator(backend, alone);
  return std::unique_ptr<Communicator>(std::make_unique<LoopbackRank>(alone.rank(), alone.ranks()));
}

Status check_devices(const DeviceOptions& options, std::int64_t ranks) {
  KOHO_TRY(check_device_list(options, ranks));
  if (options.kind != DeviceKind::cuda) return {};
  std::map<int, std::int64_t> ranks_on;
  for (std::int64_t rank = 0; rank < ranks; ++rank) ++ranks_on[device_of(options, rank)];
  const auto shared = [](const auto& device) { return device.second > 1; };
  if (std::ranges::any_of(ranks_on, shared)) {
    // Each rank's streams get a queue of their own, and kernels are loaded before any waits for
    // another rank's: a rank behind one that waits for it would never come.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  }
  for (const auto& [device, count] : ranks_on) KOHO_TRY(cuda_memory_bytes(device));
  return {};
}

Result<std::string> device_name(const DeviceOptions& options) {
  if (options.kind == DeviceKind::cuda) {
    KOHO_TRY_ASSIGN(const CudaProperties properties, cuda_properties(device_of(options, 0)));
    return properties.name;
  }
  KOHO_TRY_ASSIGN(const std::unique_ptr<Backend> backend, make_backend(options, 0, 1));
  return backend->description();
}

Result<bool> redecodes_output(const DeviceOptions& options) {
  if (options.kind != DeviceKind::cuda) return false;  // decode and prefill have the same bits
  if (options.deterministic) return *options.deterministic;
  KOHO_TRY_ASSIGN(const CudaProperties properties, cuda_properties(device_of(options, 0)));
  return properties.compute_capability == 90 && !options.portable_only;
}

Result<std::int64_t> device_memory_bytes(const DeviceOptions& options) {
  if (options.kind == DeviceKind::cuda) return cuda_memory_bytes(device_of(options, 0));
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace koho
