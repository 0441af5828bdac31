// SPDX-License-Identifier: Apache-2.0
// The launcher of experts_thin_sm90.cu: the experts of a few tokens whose rank has a slice of each.
#pragma once

#include "cuda/gemm/gemm.h"
#include "cuda/moe/experts_down.h"

namespace koho::cuda {

constexpr int kThinTokensMax = 8;
constexpr int kThinPairsMax = 64;
constexpr int kThinHiddenMax = 8192;  // bytes of K of a gate and up projection's row

/// Both projections of a step, and which experts its tokens chose.
struct ExpertsThin {
  Gemm gate_up;  // x, x_stride_bytes, x_scales: the tokens; l2_prefetch. out is not used
  Gemm down;     // out. x is not used
  const std::int32_t* ids = nullptr;  // [T, A]
  int tokens = 0;
  int top_k = 0;
  int first = 0;  // this rank has experts first .. first + count - 1
  int count = 0;
  bool shared = false;  // expert `count` of both projections takes every token
};

/// Whether launch_experts_thin() takes them, on a GPU of compute capability 9.0.
bool experts_thin_supports(const ExpertsThin& experts);

/// out[s + t A + a] = quantize(silu(gate) * up) * down^T of token t and the expert of its choice a,
/// if this rank has it; with a shared expert s is T, and rows t < T are its own, else s is 0.
///
/// shapes    x [T, H] fp8, rows aligned to 16 bytes · gate_up [2F, H] and down [N, F] fp8, a scale
///           a row, no bias · out [s + T A, N] bf16; other ranks' rows are not written
/// numerics  the bits of launch_gemm_grouped_decode_sm90() with Epilogue::silu_mul followed by
///           launch_experts_down_wgmma()
/// errors    cudaErrorInvalidValue: experts_thin_supports() is false
/// threads   NOTE: reads the shared expert's weights before it waits for the previous kernel
cudaError_t launch_experts_thin(const ExpertsThin& experts,
                                int multiprocessors,
                                cudaStream_t stream);

}  // namespace koho::cuda
