// SPDX-License-Identifier: Apache-2.0
// The kernel that copies weight rows, as a checkpoint stores them, into tiles
// (gemm/tiled_layout.h).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace koho::cuda {

/// A block of consecutive rows and where it goes. Both sides lie in device memory.
struct Repack {
  std::uint8_t* tiles = nullptr;  // the tiled matrix
  const std::uint8_t* source = nullptr;
  std::int64_t source_stride_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;    // of a source row
  std::int64_t width_bytes = 0;  // of a padded tiled row
  std::int64_t first_row = 0;    // of the block in the tiled matrix
  int interleave = 0;            // 0: none, 1: gate rows, 2: up rows of a SwiGLU pair
};
cudaError_t launch_repack(const Repack& repack, cudaStream_t stream);

}  // namespace koho::cuda
