// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/runtime.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace koho::cuda {
namespace {

/// Whether code for one of CMake's architectures runs on a compute capability: machine code
/// ("90-real") on its own and later ones of the same major version, PTX ("90-virtual", or "90",
/// which is both) on any later one. What is specific to an architecture ("90a") runs on that alone,
/// to a family ("100f") on later minor versions. Of "native" and the like nothing is known.
bool runs_on(std::string_view architecture, int major, int minor) {
  int number = 0;
  const auto [end, error] =
      std::from_chars(architecture.data(), architecture.data() + architecture.size(), number);
  if (error != std::errc()) return true;
  const std::string_view rest(end, architecture.data() + architecture.size());
  const int device = 10 * major + minor;
  if (rest.starts_with('a')) return number == device;
  if (rest.starts_with('f') || rest == "-real") return number / 10 == major && number <= device;
  return number <= device;
}

/// "13.0" of 13000.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

std::string_view compiled_architectures() {
  return KOHO_CUDA_FOR;
}

Error cuda_error(cudaError_t error, std::string_view call) {
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::resource_exhausted : ErrorCode::device_error;
  const std::size_t braces = call.find('{');  // a kernel's parameters, by the dozen
  return make_error(code, "CUDA: {} ({}) from {}{}", cudaGetErrorString(error),
                    cudaGetErrorName(error), call.substr(0, braces),
                    braces == std::string_view::npos ? "" : "…)");
}

Status check_capability(const DeviceInfo& device, std::string_view architectures) {
  if (device.major != 9 && device.major != 10)
    return make_error(ErrorCode::unsupported,
                      "{} has compute capability {}.{}; koho's kernels need 9.0 (H100, H200), "
                      "10.0 (B200) or 10.3 (B300): use such a GPU, or run on the CPU",
                      device.name, device.major, device.minor);
  for (std::string_view left = architectures; !left.empty();) {
    const std::size_t end = std::min(left.find(' '), left.size());
    if (runs_on(left.substr(0, end), device.major, device.minor)) return {};
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return make_error(ErrorCode::unsupported,
                    "{} has compute capability {}.{}, which this build has no kernels for (it has "
                    "{}): configure with -DKOHO_CUDA_ARCHITECTURES={}{}a-real, or run on the CPU",
                    device.name, device.major, device.minor, architectures, device.major,
                    device.minor);
}

Status check_exists(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  int driver = 0;  // the CUDA version it is for; 0: there is none
  KOHO_CUDA_TRY(cudaDriverGetVersion(&driver));
  if (status == cudaErrorInsufficientDriver && driver > 0)
    return make_error(
        ErrorCode::unsupported,
        "the NVIDIA driver is for CUDA {}, koho needs one for CUDA {} or newer: update "
        "it, or run on the CPU",
        version_text(driver), version_text(CUDART_VERSION));
  if (status == cudaErrorSystemNotReady)
    return make_error(ErrorCode::device_error,
                      "{}: GPUs joined by NVSwitch need NVIDIA's fabric manager (systemctl status "
                      "nvidia-fabricmanager)",
                      cuda_error(status, "cudaGetDeviceCount").message);
  const bool none = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
  if (none || (status == cudaSuccess && (index >= count || index < 0)))
    return make_error(ErrorCode::not_found, "GPU {} does not exist: {} found ({})", index, count,
                      driver == 0 ? "no NVIDIA driver" : cudaGetErrorString(status));
  if (status != cudaSuccess) return cuda_error(status, "cudaGetDeviceCount");
  return {};
}

Result<DeviceInfo> open_device(int index) {
  KOHO_TRY(check_exists(index));
  cudaDeviceProp properties{};
  KOHO_CUDA_TRY(cudaGetDeviceProperties(&properties, index));
  DeviceInfo device;
  device.name = properties.name;
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  KOHO_TRY(check_capability(device));
  KOHO_CUDA_TRY(cudaSetDevice(index));
  return device;
}

Result<PinnedMemory> allocate_pinned(std::int64_t bytes, std::string_view purpose) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(
      &data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not sticky: cleared
    return make_error(ErrorCode::resource_exhausted,
                      "memory of the host that a GPU can copy from: {} needs {} bytes, and the "
                      "system has none to lock: free some, or raise the container's limit",
                      purpose, bytes);
  }
  if (status != cudaSuccess) return cuda_error(status, "cudaHostAlloc");
  return PinnedMemory(static_cast<std::byte*>(data));
}

Result<std::byte*> DeviceMemory::allocate(std::int64_t bytes, std::string_view purpose) {
  KOHO_CUDA_TRY(cudaSetDevice(device_));
  void* data = nullptr;
  const cudaError_t status =
      cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not sticky: cleared
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    KOHO_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    return make_error(ErrorCode::resource_exhausted,
                      "memory of GPU {}: {} needs {} bytes, {} of {} are free, {} are held by koho",
                      device_, purpose, bytes, free_bytes, total_bytes, counts_.bytes);
  }
  if (status != cudaSuccess) return cuda_error(status, "cudaMalloc");
  counts_.bytes += bytes;
  ++counts_.allocations;
  counts_.purposes[std::string(purpose)] += bytes;
  blocks_[static_cast<std::byte*>(data)] = {bytes, std::string(purpose)};
  return static_cast<std::byte*>(data);
}

void DeviceMemory::free(std::byte* data) {
  if (data == nullptr) return;
  // At teardown an earlier sticky error has been reported already. If cudaSetDevice() fails,
  // cudaFree() would create a context on another GPU.
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaFree(data));
  const auto block = blocks_.find(data);
  KOHO_CHECK(block != blocks_.end());
  counts_.bytes -= block->second.bytes;
  counts_.purposes[block->second.purpose] -= block->second.bytes;
  blocks_.erase(block);
}

Result<DeviceBlock> DeviceBlock::allocate(const std::shared_ptr<DeviceMemory>& memory,
                                          std::int64_t bytes,
                                          std::string_view purpose) {
  DeviceBlock block;
  KOHO_TRY_ASSIGN(block.data_, memory->allocate(bytes, purpose));
  block.memory_ = memory;
  block.bytes_ = bytes;
  return block;
}

DeviceBlock::~DeviceBlock() {
  if (memory_ != nullptr) memory_->free(data_);
}

}  // namespace koho::cuda
