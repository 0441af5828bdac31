// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/tensor_map.h"

#include <algorithm>
#include <cstddef>

#include <cuda_runtime_api.h>

#include "cuda/attention/kv_tensor_map.h"
#include "cuda/device/runtime.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {
namespace {

/// A map of bytes, packed along the first of kRank dimensions.
template <std::size_t kRank>
Status encode_map(CUtensorMap& map,
                  const void* data,
                  const cuuint64_t (&sizes)[kRank],
                  const cuuint64_t (&strides)[kRank - 1],
                  const cuuint32_t (&box)[kRank],
                  CUtensorMapSwizzle swizzle,
                  CUtensorMapL2promotion promotion) {
  const TensorMapEncoder encode = tensor_map_encoder();
  if (encode == nullptr)
    return make_error(ErrorCode::device_error, "the driver has no cuTensorMapEncodeTiled");
  cuuint32_t steps[kRank];
  std::fill_n(steps, kRank, 1U);
  const CUresult made = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kRank, const_cast<void*>(data),
                               sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                               promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS)
    return make_error(ErrorCode::device_error,
                      "cuTensorMapEncodeTiled: error {} for {} rows of {} bytes, stride {}",
                      static_cast<int>(made), sizes[kRank - 1], sizes[0], strides[kRank - 2]);
  return {};
}

}  // namespace

Status make_tensor_map(CUtensorMap& map, const TensorRows& rows, int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(rows.row_bytes),
                               static_cast<cuuint64_t>(rows.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(rows.stride_bytes)};
  const cuuint32_t box[2] = {kTmaBoxBytes, static_cast<cuuint32_t>(box_rows)};
  return encode_map(map, rows.data, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

Status make_weight_tensor_maps(WeightTensorMaps& maps,
                               const Gemm& p,
                               const DecodeGemmConfig& form) {
  constexpr cuuint64_t kGroupBytes = 8 * kTileChunk;
  constexpr cuuint64_t kChunkBytes = kTileRows * kTileChunk;
  const auto width = static_cast<cuuint64_t>(p.width_bytes);
  const cuuint64_t sizes[4] = {kGroupBytes, width / kTileChunk, kTileRows / 8,
                               static_cast<cuuint64_t>(p.tiles)};
  const cuuint64_t strides[3] = {kChunkBytes, kGroupBytes, kTileRows * width};
  const int step = unswapped_row_step(form.rows);
  for (int rows = step; rows <= std::min(form.rows, kTileRows); rows += step) {
    const cuuint32_t box[4] = {kGroupBytes, static_cast<cuuint32_t>(form.slot_width / kTileChunk),
                               static_cast<cuuint32_t>(rows / 8), 1};
    // A box is asked for in pieces of 128 bytes, 1 KB apart, and the rest of each KB later.
    KOHO_TRY(encode_map(maps.of[rows / 8 - 1], p.weight, sizes, strides, box,
                        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE));
  }
  return {};
}

Status make_prefill_tensor_maps(PrefillTensorMaps& maps, const TensorRows& rows, int columns) {
  for (int form = 0; form < num_prefill_widths(columns); ++form)
    KOHO_TRY(make_tensor_map(maps.of[form], rows, prefill_width(columns, form) / 2));
  return {};
}

Status launch_decode_gemm(const Gemm& p, const DecodeGemmConfig& form, cudaStream_t stream) {
  CUtensorMap map;
  KOHO_TRY(make_tensor_map(
      map,
      {.data = p.x, .row_bytes = p.x_bytes, .rows = p.tokens, .stride_bytes = p.x_stride_bytes},
      tokens_per_cta(form, p.tokens)));
  if (form.rows == 0) {
    KOHO_CUDA_TRY(launch_gemm_decode_swap_ab_sm90(p, map, form, stream));
    return {};
  }
  WeightTensorMaps weight_maps{};
  KOHO_TRY(make_weight_tensor_maps(weight_maps, p, form));
  KOHO_CUDA_TRY(launch_gemm_decode_unswapped_sm90(p, weight_maps, map, form, stream));
  return {};
}

}  // namespace koho::cuda
