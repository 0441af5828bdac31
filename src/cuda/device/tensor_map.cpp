// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/tensor_map.h"

#include <algorithm>

namespace koho::cuda {

template <std::size_t kRank>
Status encode_tensor_map(CUtensorMap& map, const ByteTensor<kRank>& tensor) {
  const TensorMapEncoder encode = tensor_map_encoder();
  if (encode == nullptr)
    return make_error(ErrorCode::device_error, "the driver has no cuTensorMapEncodeTiled");
  cuuint32_t steps[kRank];
  std::fill_n(steps, kRank, 1U);
  const CUresult made =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kRank, const_cast<void*>(tensor.data),
             tensor.sizes, tensor.strides, tensor.tma_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             tensor.swizzle, tensor.l2_promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS)
    return make_error(ErrorCode::device_error,
                      "cuTensorMapEncodeTiled: error {} for {} rows of {} bytes, stride {}",
                      static_cast<int>(made), tensor.sizes[kRank - 1], tensor.sizes[0],
                      tensor.strides[kRank - 2]);
  return {};
}

template Status encode_tensor_map(CUtensorMap& map, const ByteTensor<2>& tensor);
template Status encode_tensor_map(CUtensorMap& map, const ByteTensor<4>& tensor);

Status make_tensor_map(CUtensorMap& map, const TensorRows& rows, int box_rows) {
  return encode_tensor_map<2>(
      map, {.data = rows.data,
            .sizes = {static_cast<cuuint64_t>(rows.row_bytes), static_cast<cuuint64_t>(rows.rows)},
            .strides = {static_cast<cuuint64_t>(rows.stride_bytes)},
            .tma_box = {kTmaBoxBytes, static_cast<cuuint32_t>(box_rows)},
            .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
            .l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B});
}

}  // namespace koho::cuda
