// SPDX-License-Identifier: Apache-2.0
// The matrix kernels of decode: out = x * weight^T over tiled weights (tiled_layout.h), for one matrix or
// for the experts of a layer. Two forms of one kernel: portable (mma.sync) and Hopper's (wgmma).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace koho::cuda {

using Bf16 = std::uint16_t;

enum class TileType : std::uint8_t {
  bf16,
  fp8,       // e4m3; one scale a weight row and a token
  fp8_block  // e4m3; one scale for 128 columns of a token and 128 x 128 weights
};

enum class Epilogue : std::uint8_t {
  bf16,     // out[t, n] bf16
  f32,      // out[t, n] f32
  silu_mul  // rows are interleaved gate and up: out[t, n/2] bf16
};

/// Rows first .. first + count - 1 of the sorted rows belong to `expert`.
struct ExpertTokenBlock {
  std::int32_t expert;
  std::int32_t first;
  std::int32_t count;
  std::int16_t
      block_of_expert;  // among `places` entries of the expert that follow each other in the list:
  std::int16_t blocks_of_expert;  // with many tokens they pass over the expert's weights together
};

struct Gemm {
  // Weights: `experts` matrices of `tiles` * 64 rows one after the other.
  const std::uint8_t* weight = nullptr;
  const float* row_scales = nullptr;    // [experts, tiles * 64], fp8
  const float* block_scales = nullptr;  // [experts, tiles, 2, width blocks], fp8_block: of the
                                        // first and second 8 rows of every 16
  const Bf16* bias = nullptr;           // [rows] or null
  int tiles = 0;
  int rows = 0;         // N: rows beyond are padding
  int width_bytes = 0;  // of a padded row

  // Activations: row-major, rows 16-byte aligned.
  const std::uint8_t* x = nullptr;
  std::int64_t x_stride_bytes = 0;
  int x_bytes = 0;                  // of a row; beyond is zero
  const float* x_scales = nullptr;  // [T], or [T, blocks] with x_scales_stride
  std::int64_t x_scales_stride = 0;
  const std::int32_t* x_rows = nullptr;  // sorted row -> row of x; null: the same

  // Work: one matrix (entries null): sorted rows 0 .. tokens - 1. Else *token_block_count entries.
  const ExpertTokenBlock* token_blocks = nullptr;
  const std::int32_t* token_block_count = nullptr;
  int tokens = 0;
  /// The entries were complete before the kernel before this one began, so that the weights of an
  /// item may be fetched while that one runs.
  bool token_blocks_early = false;
  /// Expert whose entry comes first, whoever was chosen (a shared one), or -1: its weights may be
  /// fetched at any time.
  int first_block_expert = -1;
  /// Entries of one expert take a tile one after the other, so that it comes from memory once. With
  /// token_tiles 1, without first_block_expert and token_blocks_early.
  bool interleave_token_blocks = false;
  /// One token, without a list: entry e is expert ids[e - single_shared] - single_first; those
  /// below 0 and from single_count on are not here. Entry 0 of single_shared is that expert.
  const std::int32_t* single_ids = nullptr;
  int single_token_blocks = 0;
  int single_first = 0;
  int single_count = 0;
  bool single_shared = false;
  bool single_row = false;  // every entry multiplies row 0 of x, not its own
  /// Bytes that are brought to L2 before the kernel waits; null = none.
  struct L2Prefetch {
    const std::uint8_t* data = nullptr;
    std::int64_t bytes = 0;
  };
  L2Prefetch l2_prefetch[2];

  void* out = nullptr;
  std::int64_t out_stride = 0;  // elements
  Epilogue epilogue = Epilogue::bf16;
  TileType type = TileType::fp8;

  int token_tiles = 1;  // columns of 8 tokens an entry may have: 1, 2, 4, 8
  int row_tiles = 1;    // of an item; 2: Hopper, fp8, 4 token tiles, one part
  int split_k = 1;      // CTAs of a cluster that share a tile's width; from the weight's shape only
};

constexpr int kSplitKMax = 8;  // a cluster that every GPU can place
/// Parts for a single matrix of this shape: enough CTAs to load every multiprocessor of an H200.
int choose_split_k(int tiles, int width_bytes);

cudaError_t launch_gemm_grouped_decode_portable(const Gemm& parameters,
                                                int multiprocessors,
                                                cudaStream_t stream);
/// Compute capability 9.0 only.
cudaError_t launch_gemm_grouped_decode_sm90(const Gemm& parameters,
                                            int multiprocessors,
                                            cudaStream_t stream);

/// The second matrix of experts, fp8, one scale a row, no bias: with rows of up to kDownWidthMax
/// bytes for entries of up to 8 tokens; on wgmma with rows of up to kDownThinWidth for those of up
/// to 32 too, since more tokens' quantised values would take the place of its ring (token_tiles 1 or 4). x is
/// bf16 in sorted order, a multiple of 8 columns and aligned to 16 bytes, and is quantised here;
/// results are bf16, a multiple of 4 columns. NOTE: entries must be older than the kernel before.
constexpr int kDownThinWidth = 512;
constexpr int kDownWidthMax = 1536;
cudaError_t launch_experts_down_portable(const Gemm& parameters,
                                         int multiprocessors,
                                         cudaStream_t stream);
/// Compute capability 9.0 only.
cudaError_t launch_experts_down_wgmma(const Gemm& parameters,
                                      int multiprocessors,
                                      cudaStream_t stream);

// ---- gemm_scale_epilogue.cu

/// out = x_scales * (row_scales * sums) + bias, in bf16, of `sums` [tokens, rows] that a product of
/// FP8 operands without scales left; of `parameters` those named here are read. Requires: rows a
/// multiple of 8; out and its rows, sums, row_scales and bias aligned to 16 bytes.
/// NOTE: reads row_scales and bias before its wait.
cudaError_t launch_gemm_scale_epilogue(const Gemm& parameters,
                                       const float* sums,
                                       cudaStream_t stream);

// ---- repack.cu

/// Puts a block of rows into tiles. Source rows are packed or strided bytes on the device.
struct Repack {
  std::uint8_t* tiles = nullptr;  // the matrix
  const std::uint8_t* source = nullptr;
  std::int64_t source_stride_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;    // of a source row
  std::int64_t width_bytes = 0;  // of a padded row
  std::int64_t first_row = 0;    // where the block begins in the matrix
  int interleave = 0;            // 0 = no, 1 = gate rows, 2 = up rows
};
cudaError_t launch_repack(const Repack& repack, cudaStream_t stream);

}  // namespace koho::cuda
