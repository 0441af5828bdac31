// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/launch_gemm_sm90.h"

#include <algorithm>

#include "cuda/device/runtime.h"

namespace koho::cuda {

Status make_weight_tensor_maps(WeightTensorMaps& maps,
                               const Gemm& p,
                               const DecodeGemmConfig& config) {
  constexpr cuuint64_t kGroupBytes = 8 * kTileChunk;
  constexpr cuuint64_t kChunkBytes = kTileRows * kTileChunk;
  const auto width = static_cast<cuuint64_t>(p.width_bytes);
  const int step = unswapped_row_step(config.rows);
  for (int rows = step; rows <= std::min(config.rows, kTileRows); rows += step)
    // NOTE: no L2 promotion. TMA reads a TMA box in pieces of 128 bytes that lie 1 KB apart, and it
    // asks for what lies between them later.
    KOHO_TRY(encode_tensor_map<4>(
        maps.of[rows / 8 - 1],
        {.data = p.weight,
         .sizes = {kGroupBytes, width / kTileChunk, kTileRows / 8,
                   static_cast<cuuint64_t>(p.tiles)},
         .strides = {kChunkBytes, kGroupBytes, kTileRows * width},
         .tma_box = {kGroupBytes, static_cast<cuuint32_t>(config.slot_width / kTileChunk),
                     static_cast<cuuint32_t>(rows / 8), 1},
         .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
         .l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE}));
  return {};
}

Status make_prefill_tensor_maps(PrefillTensorMaps& maps, const TensorRows& rows, int columns) {
  for (int index = 0; index < num_prefill_widths(columns); ++index)
    KOHO_TRY(make_tensor_map(maps.of[index], rows, prefill_width(columns, index) / 2));
  return {};
}

Status launch_decode_gemm(const Gemm& p, const DecodeGemmConfig& config, cudaStream_t stream) {
  CUtensorMap x_map;
  KOHO_TRY(make_tensor_map(
      x_map,
      {.data = p.x, .row_bytes = p.x_bytes, .rows = p.tokens, .stride_bytes = p.x_stride_bytes},
      tokens_per_cta(config, p.tokens)));
  if (config.rows == 0) {
    KOHO_CUDA_TRY(launch_gemm_decode_swap_ab_sm90(p, x_map, config, stream));
    return {};
  }
  WeightTensorMaps weight_maps{};
  KOHO_TRY(make_weight_tensor_maps(weight_maps, p, config));
  KOHO_CUDA_TRY(launch_gemm_decode_unswapped_sm90(p, weight_maps, x_map, config, stream));
  return {};
}

Status launch_prefill_gemm(
    const Gemm& p, std::int64_t rows, int columns, int multiprocessors, cudaStream_t stream) {
  PrefillTensorMaps maps;
  KOHO_TRY(make_prefill_tensor_maps(
      maps, {.data = p.x, .row_bytes = p.x_bytes, .rows = rows, .stride_bytes = p.x_stride_bytes},
      columns));
  // TMA stores whole TMA boxes; an expert's last TMA box would overwrite rows of the next expert.
  maps.stores = p.token_blocks == nullptr && p.epilogue == Epilogue::bf16 &&
                columns == kPrefillTokensMax && p.out_stride % 8 == 0 &&
                reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  constexpr std::int64_t kElement = sizeof(Bf16);
  if (maps.stores)
    KOHO_TRY(make_tensor_map(maps.out,
                             {.data = p.out,
                              .row_bytes = p.rows * kElement,
                              .rows = rows,
                              .stride_bytes = p.out_stride * kElement},
                             kPrefillTokenStep));
  KOHO_CUDA_TRY(launch_gemm_prefill_sm90(p, maps, columns, multiprocessors, stream));
  return {};
}

}  // namespace koho::cuda
