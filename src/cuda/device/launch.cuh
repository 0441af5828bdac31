// SPDX-License-Identifier: Apache-2.0
// Starts kernels, always with programmatic dependent launch: every kernel must call pdl_begin() or
// wait_on_dependent_grids() (ptx.cuh) before it touches what the previous kernel wrote.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

#include "cuda/device/kernel_modules.h"
#include "cuda/device/per_device.h"

namespace koho::cuda {
namespace {

/// A kernel of each file, by which load_kernels() finds the file's module (kernel_modules.h).
__global__ void any_kernel() {}

}  // namespace

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  int cluster = 1;
};

/// Allows a kernel `bytes` of dynamic shared memory, and prefers shared memory over L1.
template <typename Kernel>
cudaError_t allow_dynamic_shared_memory(Kernel* kernel, std::size_t bytes) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  return status != cudaSuccess
             ? status
             : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared);
}

/// The same, and clusters of more than 8 CTAs.
template <typename Kernel>
cudaError_t allow_nonportable_clusters(Kernel* kernel, std::size_t bytes) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return status != cudaSuccess ? status : allow_dynamic_shared_memory(kernel, bytes);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...),
                          const LaunchShape& shape,
                          cudaStream_t stream,
                          Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  config.numAttrs = 1;
  if (shape.cluster > 1) {
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.numAttrs = 2;
  }
  config.attrs = attributes;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace koho::cuda
