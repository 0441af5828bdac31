// SPDX-License-Identifier: Apache-2.0
// Tensor maps (CUtensorMap): how TMA finds TMA boxes of bytes in device memory. The host encodes
// one for every launch and passes it by value, so a captured CUDA graph holds its own. This file
// knows no operator: gemm/ and attention/ say which TMA boxes they need.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "base/error.h"
#include "cuda/device/tma.h"

namespace koho::cuda {

/// A tensor of bytes, innermost dimension first and packed along it.
template <std::size_t kRank>
struct ByteTensor {
  const void* data;               // a multiple of 16
  cuuint64_t sizes[kRank];        // bytes, then counts
  cuuint64_t strides[kRank - 1];  // bytes from one index of dimensions 1, 2, … to the next
  cuuint32_t tma_box[kRank];      // what one TMA instruction copies; at most 256 in each dimension
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion l2_promotion;
};

/// Elements of a TMA box beyond the tensor read as zero. Errors: device_error.
template <std::size_t kRank>
Status encode_tensor_map(CUtensorMap& map, const ByteTensor<kRank>& tensor);

/// Rows of bytes in device memory: `data` and `stride_bytes` are multiples of 16.
struct TensorRows {
  const void* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t stride_bytes = 0;
};

/// TMA boxes of `box_rows` (at most 256) rows by kTmaBoxBytes, swizzled by 128 bytes. Rows beyond
/// the last read as zero. Errors: device_error.
Status make_tensor_map(CUtensorMap& map, const TensorRows& rows, int box_rows);

}  // namespace koho::cuda
