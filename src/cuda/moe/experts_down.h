// SPDX-License-Identifier: Apache-2.0
// The launchers of the experts' down projection that quantises its input itself (experts_down.cuh).
#pragma once

#include "cuda/gemm/gemm.h"

namespace koho::cuda {

constexpr int kDownThinWidth = 512;  // bytes of K that leave room for 32 tokens' FP8 values
constexpr int kDownWidthMax = 1536;  // bytes of K for token blocks of up to 8 tokens

/// out = quantize(x) * weight^T for the token blocks of `parameters`, or for its single_ids; x has
/// a row per permuted row.
///
/// shapes    x [R, K] bf16, K a multiple of 8, aligned to 16 bytes · weight [N, K] fp8, one scale
///           per row, no bias · out [R, N] bf16, N a multiple of 4
/// numerics  x is quantised per row to e4m3, as launch_quantize_rows() does
/// errors    cudaErrorInvalidValue: token_tiles is neither 1 (width_bytes up to kDownWidthMax) nor,
///           with wgmma, 4 (width_bytes up to kDownThinWidth)
/// threads   NOTE: token_blocks or single_ids must be complete before the previous kernel starts
cudaError_t launch_experts_down_portable(const Gemm& parameters,
                                         int multiprocessors,
                                         cudaStream_t stream);
/// The same on wgmma. Compute capability 9.0 only.
cudaError_t launch_experts_down_wgmma(const Gemm& parameters,
                                      int multiprocessors,
                                      cudaStream_t stream);

}  // namespace koho::cuda
