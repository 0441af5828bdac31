// SPDX-License-Identifier: Apache-2.0
// What host code and kernels agree on about TMA, and the driver's function that encodes a tensor
// map. Host code that encodes GEMM operands uses device/tensor_map.h.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace koho::cuda {

constexpr int kTmaBoxBytes = 128;  // bytes of K in a row of a TMA box: the width of swizzle 128B

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

/// The driver's cuTensorMapEncodeTiled; null if the driver lacks it. koho does not link libcuda,
/// which a machine without a driver lacks, so the runtime looks the function up once per process.
inline TensorMapEncoder tensor_map_encoder() {
  static const TensorMapEncoder encoder = []() -> TensorMapEncoder {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kSince = 12000;  // the CUDA version that introduced it
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                kSince, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
    return reinterpret_cast<TensorMapEncoder>(function);
  }();
  return encoder;
}

}  // namespace koho::cuda
