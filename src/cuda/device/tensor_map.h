// SPDX-License-Identifier: Apache-2.0
// Descriptions of row-major activations and of tiled weights for TMA. Made on the host
// for every launch and passed by value, so a captured graph holds its own.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "base/error.h"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {

/// Rows of bytes in device memory: `data` and `stride_bytes` are multiples of 16.
struct TensorRows {
  const void* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t stride_bytes = 0;
};

/// Boxes of `box_rows` (at most 256) rows and 128 bytes, swizzled by 128 bytes; what lies beyond
/// the rows reads as zero. Errors: device_error.
Status make_tensor_map(CUtensorMap& map, const TensorRows& rows, int box_rows);
/// Tiled weights (tiled_layout.h) in the boxes that CTAs of form.rows rows need, each form.slot_width
/// bytes of K. They become core matrices: 128 bytes between chunks of K, 8 * form.slot_width
/// between 8 rows. What lies beyond the width reads as zero. Errors: device_error.
Status make_weight_tensor_maps(WeightTensorMaps& maps,
                               const Gemm& parameters,
                               const DecodeGemmConfig& form);
/// Those of launch_gemm_prefill_sm90() with `columns`.
Status make_prefill_tensor_maps(PrefillTensorMaps& maps, const TensorRows& rows, int columns);

/// One matrix in a form of either kernel, with the maps that it needs. Errors: device_error.
Status launch_decode_gemm(const Gemm& parameters,
                          const DecodeGemmConfig& form,
                          cudaStream_t stream);

}  // namespace koho::cuda
