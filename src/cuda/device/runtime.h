// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as koho uses it: errors as Status, the check of a GPU, one stream, device memory
// that is counted. Plain cudaMalloc only: managed memory and pools are not used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace koho::cuda {

/// `call` failed with `error`. Out of memory is resource_exhausted, all else device_error.
Error cuda_error(cudaError_t error, std::string_view call);

/// What the backend needs to know of a GPU.
struct DeviceInfo {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;

  bool hopper() const { return major == 9; }
};

/// What the kernels of this build are compiled for, as CMake names it: "90a-real 100f-real".
std::string_view compiled_architectures();

/// Refuses GPUs that koho's kernels, or those compiled for `architectures` (as above), cannot run
/// on: names card and need. Errors: unsupported.
Status check_capability(const DeviceInfo& device,
                        std::string_view architectures = compiled_architectures());

/// Whether there is a GPU `index`. Errors: not_found, also without a driver; unsupported (a driver
/// that is too old); device_error.
Status check_exists(int index);

/// Reads and checks device `index`. Errors: not_found, unsupported, device_error.
Result<DeviceInfo> open_device(int index);

/// Loads all of koho's kernels that the current GPU has, with those of Hopper or without: left to
/// itself CUDA loads a kernel when it is first launched, and the step that does so waits. Returns
/// how many were not loaded before. Errors: device_error.
Result<int> load_kernels(bool hopper);

struct FreePinned {
  void operator()(std::byte* data) const { static_cast<void>(cudaFreeHost(data)); }
};
/// Page-locked host memory, which the GPU copies to and from asynchronously.
using PinnedMemory = std::unique_ptr<std::byte, FreePinned>;

/// `bytes` of it for the current GPU. Errors: resource_exhausted, device_error.
Result<PinnedMemory> allocate_pinned(std::int64_t bytes, std::string_view purpose);

/// Memory of one GPU handed out by plain cudaMalloc, counted by what it is for. Threads: one at a
/// time, any; whose current GPU it becomes.
class DeviceMemory {
 public:
  explicit DeviceMemory(int device) : device_(device) {}
  struct Counts {
    std::int64_t bytes = 0;                        // held now
    std::int64_t allocations = 0;                  // made so far
    std::map<std::string, std::int64_t> purposes;  // bytes held now
  };

  /// `bytes` of device memory aligned to 256. Errors: resource_exhausted with numbers.
  Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose);
  /// Gives back what allocate() gave.
  void free(std::byte* data);
  const Counts& counts() const { return counts_; }

 private:
  struct Block {
    std::int64_t bytes = 0;
    std::string purpose;
  };
  int device_;
  Counts counts_;
  std::map<std::byte*, Block> blocks_;
};

/// A block of device memory that frees itself; its DeviceMemory is kept alive.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  static Result<DeviceBlock> allocate(const std::shared_ptr<DeviceMemory>& memory,
                                      std::int64_t bytes,
                                      std::string_view purpose);
  DeviceBlock(DeviceBlock&& other) noexcept { swap(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock();

  std::int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(DeviceBlock& other) {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<DeviceMemory> memory_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace koho::cuda

/// Returns a device error from the enclosing function if the CUDA call `expr` fails.
#define KOHO_CUDA_TRY(expr)                                             \
  do {                                                                  \
    if (const cudaError_t koho_cuda = (expr); koho_cuda != cudaSuccess) \
      return ::koho::cuda::cuda_error(koho_cuda, #expr);                \
  } while (false)
