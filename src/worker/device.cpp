// SPDX-License-Identifier: Apache-2.0
#include "worker/device.h"

#include <algorithm>
#include <unistd.h>

#include "base/log.h"
#include "base/processors.h"
#include "cuda/cuda_backend.h"

namespace koho {

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
  const std::int64_t threads =
      options.threads > 0 ? options.threads : std::int64_t{available_processors()};
  return make_cpu_backend({.threads = static_cast<int>(std::max<std::int64_t>(threads / ranks, 1)),
                           .isa = options.isa});
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
