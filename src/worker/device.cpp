// SPDX-License-Identifier: Apache-2.0
#include "worker/device.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <unistd.h>

#include "base/log.h"
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
  return make_error(ErrorCode::unsupported, "{} of {} ranks share a process: all do, or none",
                    same, all.size());
}

}  // namespace

Result<DeviceKind> choose_device(std::string_view name) {
  if (name == "cpu") return DeviceKind::cpu;
  if (name == "cuda") return DeviceKind::cuda;
  if (name != "auto")
    return make_error(ErrorCode::invalid_argument, "device must be auto, cpu or cuda, found \"{}\"",
                      name);
  if (!cuda_is_built()) return DeviceKind::cpu;
  const Status first = check_devices({.kind = DeviceKind::cuda}, 1);
  if (first.ok() || first.error().code != ErrorCode::not_found) return DeviceKind::cuda;
  log::warning("device auto is the CPU: {}", first.error().message);
  return DeviceKind::cpu;
}

Result<std::unique_ptr<Backend>> make_backend(const DeviceOptions& options,
                                              std::int64_t rank,
                                              std::int64_t ranks) {
  if (options.kind == DeviceKind::cuda)
    return make_cuda_backend({.device = static_cast<int>(rank),
                              .deterministic = options.deterministic,
                              .synthetic = options.synthetic,
                              .progress = options.progress});
  const std::int64_t threads = options.threads > 0
                                   ? options.threads
                                   : static_cast<std::int64_t>(std::thread::hardware_concurrency());
  return make_cpu_backend({.threads = static_cast<int>(std::max<std::int64_t>(threads / ranks, 1)),
                           .isa = options.isa});
}

Result<std::unique_ptr<Communicator>> make_communicator(const DeviceOptions& /*options*/,
                                                        Backend& backend,
                                                        Rendezvous& rendezvous) {
  if (rendezvous.ranks() == 1) return std::unique_ptr<Communicator>(std::make_unique<OneRank>());
  if (backend.device().kind != DeviceId::Kind::cpu)
    return make_error(
        ErrorCode::unsupported,
        "{} ranks on {}: several ranks exchange data through host memory and need the CPU",
        rendezvous.ranks(), backend.description());
  KOHO_TRY_ASSIGN(const bool threads, are_threads(rendezvous));
  return threads ? join_thread_ranks(rendezvous, kRankTimeout)
                 : join_process_ranks(rendezvous, kRankTimeout);
}

Status check_devices(const DeviceOptions& options, std::int64_t ranks) {
  if (options.kind != DeviceKind::cuda) return {};
  KOHO_TRY(cuda_memory_bytes(0));
  if (ranks > 1)
    return make_error(ErrorCode::unsupported,
                      "koho runs on one GPU, found {} ranks: several GPUs are not supported yet; "
                      "several ranks are threads of the CPU",
                      ranks);
  return {};
}

Result<std::string> device_name(const DeviceOptions& options) {
  if (options.kind == DeviceKind::cuda) {
    KOHO_TRY_ASSIGN(const CudaProperties properties, cuda_properties(0));
    return properties.name;
  }
  KOHO_TRY_ASSIGN(const std::unique_ptr<Backend> backend, make_backend(options, 0, 1));
  return backend->description();
}

Result<std::int64_t> device_memory_bytes(const DeviceOptions& options) {
  if (options.kind == DeviceKind::cuda) return cuda_memory_bytes(0);
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace koho
