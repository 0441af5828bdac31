// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "cuda/runtime.h"

namespace koho::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's encoder: the library does not link the driver, which a machine may lack.
struct Encoder {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
};
Result<Encoder> find_encoder() {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found{};
  KOHO_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000,
                                                 cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || symbol == nullptr)
    return make_error(ErrorCode::device_error, "the driver has no cuTensorMapEncodeTiled");
  return Encoder{reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(symbol)};
}

}  // namespace

Status make_tensor_map(CUtensorMap& map, const TensorRows& rows, int box_rows) {
  static const Result<Encoder> encoder = find_encoder();
  if (!encoder.ok()) return encoder.error();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(rows.row_bytes),
                               static_cast<cuuint64_t>(rows.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(rows.stride_bytes)};
  const cuuint32_t box[2] = {128, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult made = (*encoder).encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(rows.data), sizes, strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS)
    return make_error(ErrorCode::device_error,
                      "cuTensorMapEncodeTiled: error {} for {} rows of {} bytes, stride {}",
                      static_cast<int>(made), rows.rows, rows.row_bytes, rows.stride_bytes);
  return {};
}

Status make_prefill_maps(PrefillMaps& maps, const TensorRows& rows, int columns) {
  for (int form = 0; form < prefill_forms(columns); ++form)
    KOHO_TRY(make_tensor_map(maps.of[form], rows, prefill_form_columns(columns, form) / 2));
  return {};
}

}  // namespace koho::cuda
