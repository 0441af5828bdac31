// SPDX-License-Identifier: Apache-2.0
// The permutation of an expert layer: which token rows each expert multiplies, the copies of these
// rows for prefill, and the weighted combine of the experts' outputs. Parameters and launchers; the
// GEMMs between are in cuda/gemm.
//
// Words: a *pair* is (token, choice), one of the T * A token-expert pairs. Pairs sorted by expert
// are
// *permuted rows*. A *token block* is a run of one expert's permuted rows that one GEMM tile takes.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/gemm/gemm.h"

namespace koho::cuda {

/// Sorts the token-expert pairs of local experts by expert and cuts each expert's rows into token
/// blocks: as few as block_tokens allows, of equal size to one step of block_tokens_step.
///
/// The order of an expert's rows differs from call to call. No result does: a row's output does not
/// depend on its place.
struct ExpertPermutation {
  const std::int32_t* ids = nullptr;  // [T, A] global expert ids
  std::int64_t tokens = 0;
  int top_k = 0;
  int first = 0;                 // global index of the first local expert
  int count = 0;                 // local experts
  bool shared = false;           // expert `count` multiplies every token; its rows come first
  int block_tokens = 8;          // most tokens of a token block
  int block_tokens_step = 8;     // a token block but the last has a multiple of these
  std::int32_t* rows = nullptr;  // [(A + 1) * T] permuted row -> token
  std::int32_t* permuted_row = nullptr;  // [T, A] pair -> permuted row, -1 = not local
  std::int32_t* row_count = nullptr;     // [1] permuted rows
  ExpertTokenBlock* token_blocks = nullptr;
  std::int32_t* token_block_count = nullptr;  // [1]
  std::uint32_t* rows_stored = nullptr;       // [rows_stored_count] becomes 0
  int rows_stored_count = 0;
  /// The next kernel may start before this one's predecessor ends, so that it asks for weights
  /// earlier. It misses nothing that is written here: its griddepcontrol.wait returns at the end of
  /// this kernel, which itself waits for its predecessor. The kernel after it starts behind that
  /// wait. Takes effect with one CTA, up to 8,192 pairs.
  bool releases_at_once = false;
};
constexpr int kExpertsMax = 1024;  // local experts at most

/// Token blocks that `tokens` tokens need at most.
std::int64_t expert_token_blocks_max(std::int64_t tokens, int top_k, int count, int block_tokens);
cudaError_t launch_expert_permutation(const ExpertPermutation& p, cudaStream_t stream);

/// The permutation for experts that multiply every token (experts of mixed formats):
/// permuted_row[t, a] = (id - first) * rows_each + t, or -1 where the expert is not local.
struct DenseExpertRows {
  const std::int32_t* ids = nullptr;     // [T, A]
  std::int32_t* permuted_row = nullptr;  // [T, A]
  std::int64_t tokens = 0;
  int top_k = 0;
  int first = 0;
  int count = 0;
  int rows_each = 0;
};
cudaError_t launch_dense_expert_rows(const DenseExpertRows& rows, cudaStream_t stream);

/// Copies the token rows that experts multiply into permuted order, with their scales. Prefill
/// reads them by TMA.
struct ExpertGather {
  std::uint8_t* out = nullptr;  // [permuted rows, stride], 16-byte aligned rows
  std::int64_t out_stride_bytes = 0;
  float* out_scales = nullptr;      // [permuted rows, row_scales]
  const std::uint8_t* x = nullptr;  // [T], 16-byte aligned rows
  std::int64_t x_stride_bytes = 0;
  const float* x_scales = nullptr;             // [T], or [T, x_scales_stride] of block scales
  std::int64_t x_scales_stride = 0;            // 0: a scale per token
  const std::int32_t* permuted_row = nullptr;  // [T, A] pair -> permuted row, -1 = not local
  std::int64_t tokens = 0;
  int top_k = 0;
  bool shared = false;  // the first T permuted rows are all tokens
  int row_bytes = 0;
  int row_scales = 1;  // scales of a token
};
cudaError_t launch_expert_gather(const ExpertGather& gather, cudaStream_t stream);

/// The weighted combine: out[t] = bf16(sum_a weights[t, a] * y[permuted_row[t, a]]), in f32 in the
/// order of a, then + shared[t].
///
/// NOTE: the kernel reads ids, weights and permuted_row before it waits for its predecessor, so the
/// predecessor of the previous kernel, or an earlier one, must have written them.
struct ExpertCombine {
  const Bf16* y = nullptr;                     // [permuted rows, H]
  const Bf16* shared = nullptr;                // [T, H] or null
  const float* weights = nullptr;              // [T, A]
  const std::int32_t* permuted_row = nullptr;  // [T, A], or null: see `ids`
  // Pairs in order: choice a of token t has row first_row + t A + a if expert ids[t, a] is one of
  // the `count` from `first` on.
  const std::int32_t* ids = nullptr;
  int first = 0;
  int count = 0;
  int first_row = 0;
  Bf16* out = nullptr;  // [T, H]
  std::int64_t tokens = 0;
  int top_k = 0;
  int hidden = 0;
  /// Nobody reads y and shared again: L2 drops them instead of writing them to memory. Takes
  /// effect up to 511 tokens, with H a multiple of 256 and both aligned to 128 bytes.
  bool discards = false;
};
cudaError_t launch_expert_combine(const ExpertCombine& combine, cudaStream_t stream);

}  // namespace koho::cuda
