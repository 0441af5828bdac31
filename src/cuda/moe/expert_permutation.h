// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of an expert layer: which token rows each expert multiplies, and the weighted sum
// of what came out.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/gemm/gemm.h"

namespace koho::cuda {

/// An expert's rows are cut into as few entries as there may be, and these evenly, in whole steps.
struct ExpertPermutation {
  const std::int32_t* ids = nullptr;  // [T, A] global expert ids
  std::int64_t tokens = 0;
  int top_k = 0;
  int first = 0;                 // global index of the first local expert
  int count = 0;                 // local experts
  bool shared = false;           // expert `count` multiplies every token; its rows come first
  int block_tokens = 8;          // most tokens of an entry
  int block_tokens_step = 8;     // divides them: what entries' tokens are rounded up to
  std::int32_t* rows = nullptr;  // [(A + 1) * T] sorted row -> token
  std::int32_t* permuted_row = nullptr;  // [T, A] (token, slot) -> sorted row, -1 = not local
  std::int32_t* row_count = nullptr;     // [1] sorted rows
  ExpertTokenBlock* token_blocks = nullptr;
  std::int32_t* token_block_count = nullptr;  // [1]
};
constexpr int kExpertsMax = 1024;

/// Entries that `tokens` can need at most.
std::int64_t expert_token_blocks_max(std::int64_t tokens, int top_k, int count, int block_tokens);
cudaError_t launch_expert_permutation(const ExpertPermutation& plan, cudaStream_t stream);

/// Where the rows of experts lie that multiply every token: permuted_row[t, a] = (id - first) * rows_each
/// + t, or -1 where the expert is not local.
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

/// Copies the rows that experts multiply to one place, in sorted order, with their scales.
struct ExpertGather {
  std::uint8_t* out = nullptr;  // [sorted rows, stride], 16-byte aligned rows
  std::int64_t out_stride_bytes = 0;
  float* out_scales = nullptr;      // [sorted rows]
  const std::uint8_t* x = nullptr;  // [T], 16-byte aligned rows
  std::int64_t x_stride_bytes = 0;
  const float* x_scales = nullptr;             // [T]
  const std::int32_t* permuted_row = nullptr;  // [T, A] (token, slot) -> sorted row, -1 = not local
  std::int64_t tokens = 0;
  int top_k = 0;
  bool shared = false;  // the first rows are all tokens
  int row_bytes = 0;
};
cudaError_t launch_expert_gather(const ExpertGather& gather, cudaStream_t stream);

/// NOTE: ids, weights and permuted_row must be older than the kernel before.
struct ExpertCombine {
  const Bf16* y = nullptr;                     // [sorted rows, H]
  const Bf16* shared = nullptr;                // [T, H] or null
  const float* weights = nullptr;              // [T, A]
  const std::int32_t* permuted_row = nullptr;  // [T, A], or null: see `ids`
  const std::int32_t* ids = nullptr;  // one token: slot a's row is `first_row` + a, if expert
  int first = 0;                      // ids[a] is one of the `count` from `first` on
  int count = 0;
  int first_row = 0;
  Bf16* out = nullptr;  // [T, H]
  std::int64_t tokens = 0;
  int top_k = 0;
  int hidden = 0;
};
cudaError_t launch_expert_combine(const ExpertCombine& combine, cudaStream_t stream);

}  // namespace koho::cuda
