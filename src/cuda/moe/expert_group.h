// SPDX-License-Identifier: Apache-2.0
#pragma once
// One call of a group of experts: what it is given, its intermediate tensors, its kernels.
#include <cstdint>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/gemm/gemm_operands.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/moe/expert_permutation.h"
#include "cuda/moe/experts_thin.h"

namespace koho::cuda {

// Tokens from which on w2 overlaps w13 and the combine discards w2's rows. Below, the permutation
// releases w13 at once (docs/kernels/experts.md).
constexpr std::int64_t kOverlapTokens = 48;

/// Divides the scratch memory; with a null base it only counts the bytes.
class ScratchAllocator {
 public:
  explicit ScratchAllocator(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(std::int64_t count) {
    std::byte* block = base_ + used_;
    used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), kScratchAlignment);
    return reinterpret_cast<T*>(block);
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

/// Scales of a gathered token row.
inline std::int64_t gathered_scales_of(const TiledWeights& gate_up) {
  return gate_up.type == TileType::fp8_block ? ceil_div<std::int64_t>(gate_up.columns, kQuantBlock)
                                             : 1;
}

/// The intermediate tensors of an expert as two linear layers, in scratch memory of `device`.
struct LinearExpertScratch {
  TensorView gate_up;  // [T, 2F]
  Activation inner;    // [T, F]
  TensorView y;        // [T, H]

  LinearExpertScratch(ScratchAllocator& memory,
                      DeviceId device,
                      std::int64_t tokens,
                      const LinearExpert& expert) {
    const auto tensor = [&](DType dtype, Shape shape) {
      return TensorView(memory.take<std::byte>(shape.elements() * dtype_bytes(dtype)), dtype, shape,
                        device);
    };
    const std::int64_t ffn = expert.down.in_features;
    gate_up = tensor(DType::bf16, {tokens, 2 * ffn});
    if (expert.down.needs.values) inner.values = tensor(DType::bf16, {tokens, ffn});
    if (expert.down.needs.per_token) {
      inner.quantized = tensor(DType::f8_e4m3, {tokens, ffn});
      inner.scales = tensor(DType::f32, {tokens});
    }
    if (expert.down.needs.per_block) {
      inner.block_quantized = tensor(DType::f8_e4m3, {tokens, ffn});
      inner.block_scales = tensor(DType::f32, {tokens, ceil_div(ffn, kQuantBlock)});
    }
    y = tensor(DType::bf16, {tokens, expert.down.out_features});
  }
};

/// The intermediate tensors of one expert group, in scratch memory. R = token-expert pairs.
struct GroupScratch {
  std::int32_t* rows;          // [R] permuted row -> token
  std::int32_t* permuted_row;  // [T, A] pair -> permuted row
  std::int32_t* row_count;
  std::int32_t* token_block_count;
  ExpertTokenBlock* token_blocks;
  std::uint32_t* rows_stored;  // [token_blocks_max]
  std::int64_t token_blocks_max;
  Bf16* inner;  // [R, F]
  RowOutputs inner_rows;
  // [R, H]. In prefill the gathered rows of x lie here before: they are no wider, and the first
  // GEMM has read them when the second one writes y.
  Bf16* y;
  float* gathered_scales;  // [R], or under block scales [R, blocks of H]

  GroupScratch(ScratchAllocator& scratch_memory,
               std::int64_t tokens,
               std::int64_t top_k,
               std::int64_t count,
               const ExpertGroup& group) {
    const std::int64_t ffn = group.gate_up.rows;
    const std::int64_t rows_max = tokens * (top_k + 1);
    rows = scratch_memory.take<std::int32_t>(rows_max);
    permuted_row = scratch_memory.take<std::int32_t>(tokens * top_k);
    row_count = scratch_memory.take<std::int32_t>(1);
    token_block_count = scratch_memory.take<std::int32_t>(1);
    token_blocks_max =
        expert_token_blocks_max(tokens, static_cast<int>(top_k), static_cast<int>(count), 8);
    token_blocks = scratch_memory.take<ExpertTokenBlock>(token_blocks_max);
    rows_stored = scratch_memory.take<std::uint32_t>(token_blocks_max);
    const std::int64_t stride =
        round_up<std::int64_t>(ffn, 16);  // rows of every dtype stay aligned
    inner = scratch_memory.take<Bf16>(rows_max * stride);
    if (group.down.type == TileType::fp8) {
      inner_rows.quantized = scratch_memory.take<std::uint8_t>(rows_max * stride);
      inner_rows.quantized_stride = stride;
      inner_rows.scales = scratch_memory.take<float>(rows_max);
    } else if (group.down.type == TileType::fp8_block) {
      inner_rows.block_quantized = scratch_memory.take<std::uint8_t>(rows_max * stride);
      inner_rows.block_quantized_stride = stride;
      inner_rows.block_scales_stride = ceil_div<std::int64_t>(ffn, kQuantBlock);
      inner_rows.block_scales =
          scratch_memory.take<float>(rows_max * inner_rows.block_scales_stride);
    }
    y = scratch_memory.take<Bf16>(rows_max * group.down.rows);
    gathered_scales = scratch_memory.take<float>(rows_max * gathered_scales_of(group.gate_up));
  }
};

/// One call of a group of experts. Experts first .. first + count - 1 of the `total` that the
/// router chose among take the tokens that `routing` sends them. With `shared`, one more expert,
/// whose weights follow theirs, takes every token.
struct GroupCall {
  const ExpertGroup& group;
  const Activation& x;
  const Routing& routing;
  std::int64_t tokens;
  std::int64_t first;
  std::int64_t count;
  std::int64_t total;
  bool shared;

  std::int64_t top_k() const { return routing.ids.size(1); }
  std::int64_t rows_max() const { return tokens * (top_k() + (shared ? 1 : 0)); }
  std::int64_t inner_stride() const { return round_up<std::int64_t>(group.gate_up.rows, 16); }
  /// A step of one token needs no permutation: its experts' rows are 0, 1, … in the router's order.
  bool single() const { return tokens == 1; }
  bool narrow() const { return shared && group.last_is_narrow(); }
  /// Sets the work list of `gemm`, of `matrix`, with token blocks of up to `block_tokens`.
  void set_work(Gemm& gemm,
                const TiledWeights& matrix,
                const GroupScratch& s,
                int block_tokens) const {
    if (shared)
      gemm.shared = {.token_blocks = static_cast<int>(ceil_div<std::int64_t>(tokens, block_tokens)),
                     .tiles = static_cast<int>(matrix.last_tiles),
                     .width_bytes = static_cast<int>(matrix.last_width_bytes),
                     .x_bytes = static_cast<int>(2 * group.last_ffn)};
    if (!single()) {
      gemm.token_blocks = s.token_blocks;
      gemm.token_block_count = s.token_block_count;
      return;
    }
    gemm.single_ids = routing.ids.as<const std::int32_t>();
    gemm.single_token_blocks = static_cast<int>(top_k()) + (shared ? 1 : 0);
    gemm.single_first = static_cast<int>(first);
    gemm.single_count = static_cast<int>(count);
    gemm.single_shared = shared;
  }
  /// The parameters of the kernel of few tokens and thin experts.
  ExpertsThin thin(const GroupScratch& s) const {
    ExpertsThin p{group.gate_up.parameters(), group.down.parameters()};
    set_activation(p.gate_up, activation_for(x, group.gate_up.type));
    prefetch_shared(p.gate_up);
    p.down.out = s.y;
    p.down.out_stride = p.down.rows;
    p.ids = routing.ids.as<const std::int32_t>();
    p.tokens = static_cast<int>(tokens);
    p.top_k = static_cast<int>(top_k());
    p.first = static_cast<int>(first);
    p.count = static_cast<int>(count);
    p.shared = shared;
    return p;
  }
  /// Lets `gemm`, the first of a step of few tokens, ask for the shared expert's weights early.
  void prefetch_shared(Gemm& gemm) const {
    if (!shared) return;
    const auto of = [&](const TiledWeights& matrix) {
      const std::int64_t before = count * matrix.tiles * kTileRows * matrix.width_bytes;
      return Gemm::L2Prefetch{matrix.weight.as<const std::uint8_t>() + before,
                              matrix.last_tiles * kTileRows * matrix.last_width_bytes};
    };
    gemm.l2_prefetch[0] = of(group.gate_up);
    gemm.l2_prefetch[1] = of(group.down);
  }
};

/// Which kernels run the call, and how they divide it.
struct GroupKernels {
  bool prefill;           // a prefill kernel, on wgmma on gathered rows; else a decode kernel
  int token_tiles;        // decode: n8 tiles that a token block has room for
  int block_tokens;       // tokens that a token block has room for
  int block_tokens_step;  // of which an expert's token blocks but the last have multiples
  int row_tiles;          // decode: weight tiles of a work tile
  bool interleave_token_blocks;  // decode: the blocks of an expert take each weight tile in turn
  bool down_quantises;           // experts_down.cuh runs the down projection
  bool down_overlaps;            // it starts on a token block when w13 has stored its rows
};

/// The outputs in permuted order.
struct GroupRows {
  const Bf16* y;
  const Bf16* shared;                // of the shared expert, or null
  const std::int32_t* permuted_row;  // [T, A] pair -> permuted row; null: pairs are in order
};

}  // namespace koho::cuda
