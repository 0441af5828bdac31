// SPDX-License-Identifier: Apache-2.0
// Hopper's matrix kernels for one matrix (decode) and for many tokens. All give a row the same
// bits.
#pragma once

#include <numeric>
#include <vector>

#include <cuda.h>

#include "base/arithmetic.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

constexpr int kTmaBoxBytes = 128;       // bytes of K of a box of token rows
constexpr int kSharedMax = 227 * 1024;  // bytes of shared memory that a CTA may have

/// How the work of one matrix is cut; no result depends on it.
struct DecodeGemmConfig {
  int columns = 8;       // room for so many tokens a CTA: 8, 16, 32, 64, 128
  int slot_width = 256;  // bytes of K of a slot of the ring: 256 or 128
  int ring_bytes = 0;
  int producer_warps = 1;  // warps; with 2 one of them copies token rows alone
  int rows = 0;            // weight rows of a CTA of the unswapped kernel; 0: the other kernel
  int ctas_per_sm = 1;     // CTAs that a multiprocessor has room for (unswapped): 1 or 2
  int ctas = 0;  // that take blocks of rows one after the other (unswapped); 0: one a block
  int weight_multicast =
      1;  // 2: the tokens' two slices are a cluster and share weights (unswapped)
};

/// Whether CTAs of a form of the unswapped kernel can take blocks one after the other.
constexpr bool is_persistent(const DecodeGemmConfig& form) {
  return form.slot_width < kStageWidth && form.ctas_per_sm == 1;
}

/// The form of one matrix on Hopper, from measurements on an H200 (bench/gemm_bench.cpp).
DecodeGemmConfig choose_decode_gemm_config(const Gemm& parameters, int multiprocessors);
/// All of the unswapped kernel's that can multiply these.
std::vector<DecodeGemmConfig> unswapped_configs(const Gemm& parameters);
/// The unswapped kernel's, if that is the faster one; else one of 0 rows.
DecodeGemmConfig choose_unswapped_config(const Gemm& parameters, int multiprocessors);

/// Tokens of a CTA's slice: as equal as they can be. `tokens` of the whole call.
constexpr int tokens_per_cta(const DecodeGemmConfig& form, int tokens) {
  return form.rows > 0 ? ceil_div(tokens, ceil_div(tokens, form.columns)) : tokens;
}

/// One matrix for up to `form.columns` tokens, each CTA 64 weight rows; `x_map` describes x in
/// boxes of tokens_per_cta() rows. NOTE: a row of a box that is no token's is read as zeros, at a
/// fraction of other rows' speed.
cudaError_t launch_gemm_decode_swap_ab_sm90(const Gemm& parameters,
                                            const CUtensorMap& x_map,
                                            const DecodeGemmConfig& form,
                                            cudaStream_t stream);

/// CTAs with `rows` weight rows begin at multiples of this within tiles.
constexpr int unswapped_row_step(int rows) {
  return std::gcd(rows, kTileRows);
}
/// Weights in boxes of 8, 16, … 64 rows, as far as the form needs them.
struct WeightTensorMaps {
  CUtensorMap of[kTileRows / 8];
};
/// The same unswapped, form.rows weight rows and the whole width a CTA; with 64 columns it has one
/// warpgroup, with 128 two and all tokens. Its bits are the other kernel's where the width is a
/// multiple of kStageWidth. Errors: cudaErrorInvalidValue for a form that unswapped_configs() lacks.
cudaError_t launch_gemm_decode_unswapped_sm90(const Gemm& parameters,
                                              const WeightTensorMaps& weight_maps,
                                              const CUtensorMap& x_map,
                                              const DecodeGemmConfig& form,
                                              cudaStream_t stream);

/// The kernel of many tokens multiplies 128 of them at a time, or up to kPrefillTokensMax: there an
/// item's products have its tokens rounded up to the next form.
constexpr int kPrefillTokensMax = 192;
constexpr int kPrefillTokenStep = 16;
constexpr int num_prefill_widths(int columns) {
  return columns == kPrefillTokensMax ? 9 : 1;
}
constexpr int prefill_width(int columns, int form) {
  return columns - (num_prefill_widths(columns) - 1 - form) * kPrefillTokenStep;
}

/// x in boxes of half the columns of each form.
struct PrefillTensorMaps {
  CUtensorMap of[num_prefill_widths(kPrefillTokensMax)];
  CUtensorMap out;  // in boxes of kPrefillTokenStep tokens by a tile's rows, if TMA stores
  bool stores = false;
};

/// One matrix or experts, any number of tokens; entries have at most `columns` (128; or
/// kPrefillTokensMax, for fp8 in one part, rounded to bf16). x_rows is not used: rows of x lie in
/// sorted order, and `maps` describes them.
cudaError_t launch_gemm_prefill_sm90(const Gemm& parameters,
                                     const PrefillTensorMaps& maps,
                                     int columns,
                                     int multiprocessors,
                                     cudaStream_t stream);

}  // namespace koho::cuda
