// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/attention/kv_tensor_map.h"
#include "cuda/device/tma.h"

namespace koho::cuda {
namespace {

/// A tensor map of packed rows of `width` elements of `bytes` each, in panels of at most 128 bytes.
cudaError_t make_map(
    CUtensorMap& map, const void* first, std::int64_t rows, int width, int bytes, int box_rows) {
  const TensorMapEncoder encode = tensor_map_encoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const int panel = std::min(width * bytes, kPanelBytesMax);
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(width * bytes)};
  const cuuint32_t box_dim[2] = {static_cast<cuuint32_t>(panel / bytes),
                                 static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult made = encode(
      &map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
      const_cast<void*>(first), sizes, strides, box_dim, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      panel == kPanelBytesMax ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t make_kv_tensor_maps(KvTensorMaps& maps, const Attention& p, int box_rows) {
  const std::int64_t rows = p.pages * p.kv_heads * kPageRows;
  const int bytes = p.k_scales != nullptr ? 1 : 2;
  const cudaError_t made = make_map(maps.k, p.k, rows, p.width, bytes, box_rows);
  return made != cudaSuccess ? made : make_map(maps.v, p.v, rows, p.width, bytes, box_rows);
}

cudaError_t make_row_tensor_map(
    CUtensorMap& map, const void* first, std::int64_t rows, int width, int box_rows) {
  return make_map(map, first, rows, width, 2, box_rows);
}

}  // namespace koho::cuda
