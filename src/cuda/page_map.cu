// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/page_map.h"

namespace koho::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found once: nothing here links the driver's library.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // the CUDA version that brought it
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                              kSince, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(function);
}

}  // namespace

cudaError_t make_page_maps(PageMaps& maps, const Attention& p) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const bool fp8 = p.k_scales != nullptr;
  const int element = fp8 ? 1 : 2;
  const int panel = std::min(p.width * element, kPanelBytesMax);
  const cuuint64_t sizes[2] = {
      static_cast<cuuint64_t>(p.width),
      static_cast<cuuint64_t>(p.pages) * static_cast<cuuint64_t>(p.kv_heads) * kPageRows};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(p.width * element)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(panel / element), kPageRows};
  const cuuint32_t steps[2] = {1, 1};
  const auto describe = [&](CUtensorMap& map, const void* pages) {
    return encode(&map, fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                  const_cast<void*>(pages), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  panel == kPanelBytesMax ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  const bool made = describe(maps.k, p.k) == CUDA_SUCCESS && describe(maps.v, p.v) == CUDA_SUCCESS;
  return made ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace koho::cuda
