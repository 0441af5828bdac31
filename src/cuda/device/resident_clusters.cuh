// SPDX-License-Identifier: Apache-2.0
// How many clusters of a kernel a GPU runs at a time.
#pragma once

#include "cuda/device/launch.cuh"

namespace koho::cuda {

/// How many clusters of `cluster` CTAs, more than 8 too, the GPU holds; 0: none. Allows the kernel
/// what such a launch needs.
template <typename Kernel>
int resident_clusters(Kernel* kernel, int cluster, int threads, std::size_t shared_bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (allow_nonportable_clusters(kernel, shared_bytes) == cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess)
    return clusters;
  static_cast<void>(cudaGetLastError());  // not the next launch's
  return 0;
}

}  // namespace koho::cuda
