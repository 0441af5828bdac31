// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel of a linear layer's GEMM, and how it divides the work: the one place that
// does. docs/kernels/gemm.md has the same rules as a table. moe/experts.cpp chooses for experts.
// Needs no GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/gemm/decode_gemm_config.h"
#include "cuda/gemm/gemm.h"

namespace koho::cuda {

enum class GemmKernel : std::uint8_t {
  grouped_decode,    // gemm_grouped_decode.cuh, on wgmma where the GPU has it, else on mma.sync
  decode,            // one of Hopper's two decode kernels, see choose_decode_gemm_config()
  prefill_128,       // gemm_prefill_sm90.cu with token blocks of up to 128 tokens
  prefill_192,       // the same with up to 192 tokens and TMA stores
  prefill_portable,  // gemm_prefill_portable.cu
  cublaslt           // cublaslt_gemm.cpp; grouped_decode or prefill_128 if it has no algorithm
};

/// What the choice depends on beside the GEMM itself.
struct GemmSupport {
  bool wgmma = false;     // the GPU is Hopper and its kernels may be used
  bool cublaslt = false;  // cuBLASLt may be used, and the layer has a row-major copy of its weight
  bool prefill_portable = false;  // the portable prefill kernel may be used
  int multiprocessors = 0;
};

/// The kernel for the linear layer `p` of which type, tiles, rows, width_bytes, tokens, x, out and
/// epilogue are set.
GemmKernel choose_gemm(const Gemm& p, const GemmSupport& support);

/// CTAs that share the K of each weight tile (split-K). Depends on the weight's shape alone,
/// because a row's sums follow it: a row then has the same bits among any number of tokens and on
/// any GPU.
int choose_split_k(int tiles, int width_bytes);

/// n8 tiles of tokens of a token block for about `tokens` tokens: 1, 2, 4 or 8.
int choose_token_tiles(std::int64_t tokens);

/// Hopper's decode kernel, and its configuration, for one weight matrix and up to 128 tokens, or as
/// many as choose_unswapped_config() takes.
DecodeGemmConfig choose_decode_gemm_config(const Gemm& p, int multiprocessors);

/// The unswapped kernel's configuration if it is the faster one; else rows is 0: swap-AB runs, or
/// beyond 128 tokens a prefill kernel.
DecodeGemmConfig choose_unswapped_config(const Gemm& p, int multiprocessors);

/// All configurations of the unswapped kernel that support `p`.
std::vector<DecodeGemmConfig> unswapped_configs(const Gemm& p);

}  // namespace koho::cuda
