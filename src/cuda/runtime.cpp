// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime.h"

#include <algorithm>

namespace koho::cuda {

Error cuda_error(cudaError_t error, std::string_view call) {
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::resource_exhausted : ErrorCode::device_error;
  return make_error(code, "CUDA: {} ({}) from {}", cudaGetErrorString(error),
                    cudaGetErrorName(error), call);
}

Status check_capability(const DeviceInfo& device) {
  if (device.major == 9 || device.major == 10) return {};
  return make_error(ErrorCode::unsupported,
                    "{} has compute capability {}.{}; koho's kernels need 9.0 (H100, H200) or 10.0 "
                    "(B200): use such a GPU, or run on the CPU",
                    device.name, device.major, device.minor);
}

Status check_exists(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver || index >= count ||
      index < 0)
    return make_error(ErrorCode::not_found, "GPU {} does not exist: {} found ({})", index, count,
                      cudaGetErrorString(status));
  KOHO_CUDA_TRY(status);
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

Result<std::byte*> DeviceMemory::allocate(std::int64_t bytes, std::string_view purpose) {
  void* data = nullptr;
  const cudaError_t status =
      cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not sticky: cleared
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    KOHO_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    return make_error(ErrorCode::resource_exhausted,
                      "GPU memory: {} needs {} bytes, {} of {} are free, {} are held by koho",
                      purpose, bytes, free_bytes, total_bytes, counts_.bytes);
  }
  KOHO_CUDA_TRY(status);
  counts_.bytes += bytes;
  ++counts_.allocations;
  counts_.purposes[std::string(purpose)] += bytes;
  blocks_[static_cast<std::byte*>(data)] = {bytes, std::string(purpose)};
  return static_cast<std::byte*>(data);
}

void DeviceMemory::free(std::byte* data) {
  if (data == nullptr) return;
  static_cast<void>(cudaFree(data));  // at teardown an earlier sticky error has been reported
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
