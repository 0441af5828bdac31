// SPDX-License-Identifier: Apache-2.0
// The parameters of every GEMM kernel of koho, and the launchers that run on every GPU or serve
// both one weight matrix and the experts of a layer. All compute out[t, n] = epilogue(x[t, :] *
// weight[n, :]^T) over tiled weights (tiled_layout.h). gemm_sm90.h has Hopper's other launchers,
// choose_gemm.h says which kernel runs when. Launchers check shapes only where a wrong one could
// hang the GPU.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/device/tile_type.h"

namespace koho::cuda {

using Bf16 = std::uint16_t;

enum class Epilogue : std::uint8_t {
  bf16,     // out[t, n] bf16
  f32,      // out[t, n] f32
  silu_mul  // weight rows interleave gate and up: out[t, n/2] bf16 = silu(gate) * up
};

/// A work list's element: rows first .. first + count - 1 of the permuted token rows go through
/// `expert`. An expert with many rows has several blocks, which follow each other in the list.
struct ExpertTokenBlock {
  std::int32_t expert;
  std::int32_t first;
  std::int32_t count;
  std::int16_t block_of_expert;   // index of this block among those of its expert
  std::int16_t blocks_of_expert;  // how many the expert has
};

/// One GEMM. T = tokens, N = rows, K = x_bytes / bytes of an element.
struct Gemm {
  // ---- weights: one matrix per expert (one for a linear layer), each `tiles` * 64 rows, packed
  const std::uint8_t* weight = nullptr;
  const float* row_scales = nullptr;  // fp8: [experts, tiles * 64]
  const float* block_scales =
      nullptr;                 // fp8_block: [experts, tiles, 2, blocks of K]; index 0 for the
                               // first 8 rows of every 16, index 1 for the second 8
  const Bf16* bias = nullptr;  // [N] or null
  int tiles = 0;
  int rows = 0;         // N; the last tile's rows beyond N are padding
  int width_bytes = 0;  // of a padded weight row

  // ---- activations: row-major, rows aligned to 16 bytes
  const std::uint8_t* x = nullptr;
  std::int64_t x_stride_bytes = 0;
  int x_bytes = 0;                  // of a row; kernels read zeros beyond
  const float* x_scales = nullptr;  // fp8: [T]; fp8_block: [T, x_scales_stride]
  std::int64_t x_scales_stride = 0;
  const std::int32_t* x_rows = nullptr;  // permuted row -> row of x; null: the identity

  // ---- work: a linear layer's `tokens` rows, or the experts' *token_block_count token blocks
  const ExpertTokenBlock* token_blocks = nullptr;  // null: a linear layer
  const std::int32_t* token_block_count = nullptr;
  int tokens = 0;
  /// The list was complete before the previous kernel started. A CTA may then prefetch the weights
  /// of its first work tile while that kernel still runs (programmatic dependent launch).
  bool token_blocks_early = false;
  /// The expert of the first token block whatever the router chose (a shared expert), or -1. Its
  /// weights may be prefetched at any time.
  int first_block_expert = -1;
  /// [token blocks], zero before: lets two GEMMs of experts overlap. The first one's MMA warps add
  /// 1 to a block's entry when its outputs of a weight tile are stored; experts_down.cuh waits for
  /// rows_stored_full in the entry of each block, not for the previous kernel. Null: it waits for
  /// that kernel. Requires split_k 1.
  std::uint32_t* rows_stored = nullptr;
  std::uint32_t rows_stored_full = 0;
  /// CTAs take the blocks of one expert in turn for each weight tile, so that HBM delivers the tile
  /// once and L2 the rest. Requires token_tiles 1, no first_block_expert, no token_blocks_early.
  bool interleave_token_blocks = false;
  /// A step of one token needs no list: block b belongs to expert single_ids[b - single_shared] -
  /// single_first, and is empty if that is not in 0 .. single_count - 1 (another rank's expert).
  /// With single_shared, block 0 belongs to expert single_count.
  const std::int32_t* single_ids = nullptr;
  int single_token_blocks = 0;
  int single_first = 0;
  int single_count = 0;
  bool single_shared = false;
  bool single_row = false;  // every block multiplies row 0 of x, not a row of its own
  /// The last expert, if it is a shared one: the first token blocks of the list, or of a step of
  /// one token, are its own. It may be narrower than the others (a rank's slice): with fewer weight
  /// tiles in a grouped decode GEMM, with narrower rows in experts_down.cuh.
  struct SharedExpert {
    int token_blocks = 0;  // 0: there is none
    int tiles = 0;
    int width_bytes = 0;
    int x_bytes = 0;
    std::uint32_t rows_stored_full = 0;
  };
  SharedExpert shared;
  /// Bytes that the producers prefetch into L2 before they wait for the previous kernel.
  struct L2Prefetch {
    const std::uint8_t* data = nullptr;
    std::int64_t bytes = 0;
  };
  L2Prefetch l2_prefetch[2];

  // ---- output
  void* out = nullptr;
  std::int64_t out_stride = 0;  // elements
  Epilogue epilogue = Epilogue::bf16;
  TileType type = TileType::fp8;

  // ---- how the kernel divides the work; choose_gemm.h
  int token_tiles = 1;  // n8 tiles of tokens that a token block may have: 1, 2, 4, 8
  int row_tiles = 1;    // weight tiles of a work tile; 2 needs sm_90, fp8, token_tiles 4, split_k 1
  int split_k = 1;      // CTAs of a cluster that share a weight tile's K
};

constexpr int kSplitKMax = 8;  // the largest cluster that every GPU can place

/// A linear layer or experts in swap-AB orientation, on mma.sync (gemm_grouped_decode.cuh).
cudaError_t launch_gemm_grouped_decode_portable(const Gemm& parameters,
                                                int multiprocessors,
                                                cudaStream_t stream);

/// The prefill GEMM on mma.sync takes token blocks of up to kPortablePrefillTokensMax tokens, and
/// multiplies them rounded up to a step.
constexpr int kPortablePrefillTokensMax = 128;
constexpr int kPortablePrefillTokenStep = 16;

/// Whether launch_gemm_prefill_portable() takes `p`, once its rows of x are aligned to 16 bytes.
inline bool prefill_portable_supports(const Gemm& p) {
  return p.type == TileType::fp8 && p.epilogue != Epilogue::f32 && p.rows % 8 == 0 &&
         p.out_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0 &&
         (p.bias == nullptr || p.epilogue == Epilogue::bf16) && p.single_ids == nullptr;
}

/// A linear layer or experts of a prompt, on mma.sync (gemm_prefill_portable.cu). A row has the
/// bits of launch_gemm_grouped_decode_portable(). Errors: cudaErrorInvalidValue for parameters that
/// it does not support.
cudaError_t launch_gemm_prefill_portable(const Gemm& parameters,
                                         int multiprocessors,
                                         cudaStream_t stream);

/// The grouped decode GEMM on wgmma. Compute capability 9.0 only.
cudaError_t launch_gemm_grouped_decode_sm90(const Gemm& parameters,
                                            int multiprocessors,
                                            cudaStream_t stream);

/// Applies scales and bias to the sums of an unscaled FP8 GEMM:
/// out = x_scales * (row_scales * sums) + bias.
///
/// shapes    sums [T, N] f32 packed · of `parameters` tokens, rows, x_scales, row_scales, bias, out
/// layout    N a multiple of 8; out, its rows, sums, row_scales and bias aligned to 16 bytes
/// numerics  f32, rounded once to bf16, in the order of koho's GEMM kernels
/// threads   NOTE: reads row_scales and bias before it waits for the previous kernel
cudaError_t launch_gemm_scale_epilogue(const Gemm& parameters,
                                       const float* sums,
                                       cudaStream_t stream);

}  // namespace koho::cuda
