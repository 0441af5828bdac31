// SPDX-License-Identifier: Apache-2.0
// Hopper's GEMM launchers beside launch_gemm_grouped_decode_sm90(): decode of one weight matrix in
// swap-AB and in unswapped orientation, and prefill. All sum K in the same order, so a token row
// has the same bits in each. Their operands come with tensor maps; launch_gemm_sm90.h encodes them.
#pragma once

#include <cuda.h>

#include "cuda/device/tma.h"
#include "cuda/gemm/decode_gemm_config.h"
#include "cuda/gemm/gemm.h"

namespace koho::cuda {

/// One weight matrix and up to config.columns tokens. A = 64 weight rows of a CTA, B = the tokens.
/// `x_map` describes x in TMA boxes of tokens_per_cta() rows. NOTE: TMA fills rows of a TMA box
/// beyond the tensor with zeros, but at a fraction of the speed of other rows; hence not more.
cudaError_t launch_gemm_decode_swap_ab_sm90(const Gemm& parameters,
                                            const CUtensorMap& x_map,
                                            const DecodeGemmConfig& config,
                                            cudaStream_t stream);

/// Tiled weights in TMA boxes of 8, 16, … 64 rows, as far as a configuration needs them.
struct WeightTensorMaps {
  CUtensorMap of[kTileRows / 8];
};
/// The same GEMM in the usual orientation: A = 64 tokens of a warpgroup, B = config.rows weight
/// rows, and the whole K in one CTA. Its bits equal the swap-AB kernel's if width_bytes is a
/// multiple of kStageWidth. Errors: cudaErrorInvalidValue for a configuration that is not in
/// kUnswappedConfigs or does not support these parameters.
cudaError_t launch_gemm_decode_unswapped_sm90(const Gemm& parameters,
                                              const WeightTensorMaps& weight_maps,
                                              const CUtensorMap& x_map,
                                              const DecodeGemmConfig& config,
                                              cudaStream_t stream);

// ---- prefill

/// The prefill kernel's token blocks have up to 128, kPrefillTokensMid or kPrefillTokensMax tokens.
/// Except for 128, the MMAs of a work tile have its tokens rounded up to one of
/// num_prefill_widths() widths.
constexpr int kPrefillTokensMax = 192;
constexpr int kPrefillTokensMid = 160;  // one stage of operands more
constexpr int kPrefillTokenStep = 16;
constexpr int num_prefill_widths(int columns) {
  return columns == 128 ? 1 : columns / kPrefillTokenStep - 3;
}
constexpr int prefill_width(int columns, int index) {
  return columns - (num_prefill_widths(columns) - 1 - index) * kPrefillTokenStep;
}

struct PrefillTensorMaps {
  CUtensorMap
      of[num_prefill_widths(kPrefillTokensMax)];  // x in TMA boxes of half of each width's rows
  CUtensorMap out;      // in TMA boxes of kPrefillTokenStep tokens by 64 columns, if `stores`
  bool stores = false;  // TMA stores the output
};

/// A linear layer or experts, any number of tokens. Token blocks have at most `columns` tokens:
/// 128, or with split_k 1 and bf16 output kPrefillTokensMid (fp8) or kPrefillTokensMax (not bf16
/// weights). The rows of x lie in
/// permuted order; x_rows is not used. Errors: cudaErrorInvalidValue for other columns, and for
/// fp8_block with f32 output.
cudaError_t launch_gemm_prefill_sm90(const Gemm& parameters,
                                     const PrefillTensorMaps& maps,
                                     int columns,
                                     int multiprocessors,
                                     cudaStream_t stream);

}  // namespace koho::cuda
