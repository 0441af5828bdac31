// SPDX-License-Identifier: Apache-2.0
// What launchers set or query once per GPU of the process: cudaFuncSetAttribute() changes a kernel
// on the current GPU only, and occupancy is a GPU's own. Nothing here launches.
#pragma once

#include <atomic>

#include <cuda_runtime_api.h>

namespace koho::cuda {

/// For static storage. A failure is not kept: with more free memory the next call may succeed.
/// Threads: any; two concurrent first calls both query.
class PerDevice {
 public:
  /// find()'s number, above 0, on the current GPU; 0: it failed.
  template <typename Find>
  int number(const Find& find) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= kDevicesMax) return find();
    const int known = numbers_[device].load(std::memory_order_acquire);
    if (known != 0) return known;
    const int number = find();
    if (number != 0) numbers_[device].store(number, std::memory_order_release);
    return number;
  }
  /// What make() says on the current GPU; once it has succeeded there, cudaSuccess without it.
  template <typename Make>
  cudaError_t once(const Make& make) {
    cudaError_t status = cudaSuccess;
    static_cast<void>(number([&] {
      status = make();
      return status == cudaSuccess ? 1 : 0;
    }));
    return status;
  }

 private:
  static constexpr int kDevicesMax = 16;  // of one process; of others nothing is kept
  std::atomic<int> numbers_[kDevicesMax] = {};
};

}  // namespace koho::cuda
