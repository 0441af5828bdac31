// SPDX-License-Identifier: Apache-2.0
// The experts operator: permutes a step's token-expert pairs, runs both grouped GEMMs of the layer,
// and combines the outputs. choose_group_kernels() chooses the kernels; docs/kernels/experts.md has
// its rules as a table. Experts of mixed formats are mixed_format_experts.cpp's.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/gemm/choose_gemm.h"
#include "cuda/gemm/gemm_operands.h"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/moe/expert_permutation.h"
#include "cuda/moe/experts_down.h"
#include "cuda/moe/experts_thin.h"

namespace koho::cuda {
namespace {

// Token-expert pairs per expert from which on the prefill kernel runs (docs/kernels/experts.md).
// The decode kernels for few experts, and for thin ones, of which a rank has a slice, last longer.
constexpr std::int64_t kPrefillRowsPerExpert = 12;
constexpr std::int64_t kPrefillRowsPerFewExperts = 24;
constexpr std::int64_t kPrefillRowsPerThinExpert = 32;
constexpr std::int64_t kPrefillRowsPerExpertPortable = 24;
constexpr std::int64_t kFewExpertsMax = 40;  // that a rank has
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

/// Whether experts_down.cuh is the faster kernel for the down projection of `count` experts with
/// weight rows of `width_bytes`. It saves the kernel that quantises between both GEMMs, 1 to 4 us
/// whatever the number of experts: 20 and 40 whole experts gain 2 to 4 %, 129 lose 2 %.
bool thin_or_few(std::int64_t width_bytes, std::int64_t count) {
  return width_bytes <= kDownThinWidth || (width_bytes <= kDownWidthMax && count <= kFewExpertsMax);
}

/// Whether a launch_experts_down_*() runs the down projection `p` of `count` experts of `columns`
/// input columns, for token blocks of `tiles` n8 tiles.
bool takes_experts_down(
    const Gemm& p, std::int64_t columns, std::int64_t count, int tiles, bool wgmma) {
  const bool is_compiled = tiles == 1 || (wgmma && tiles == 4 && p.width_bytes <= kDownThinWidth);
  return is_compiled && thin_or_few(p.width_bytes, count) && p.type == TileType::fp8 &&
         columns % 8 == 0 && p.rows % 4 == 0 && p.bias == nullptr;
}

/// Scales of a gathered token row.
std::int64_t gathered_scales_of(const TiledWeights& gate_up) {
  return gate_up.type == TileType::fp8_block ? ceil_div<std::int64_t>(gate_up.columns, kQuantBlock)
                                             : 1;
}

}  // namespace

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
/// whose weights follow theirs, takes every token; without `routing` it is the only one.
struct GroupCall {
  const ExpertGroup& group;
  const Activation& x;
  const Routing* routing;
  std::int64_t tokens;
  std::int64_t first;
  std::int64_t count;
  std::int64_t total;
  bool shared;

  std::int64_t top_k() const { return routing != nullptr ? routing->ids.size(1) : 0; }
  std::int64_t rows_max() const { return tokens * (top_k() + (shared ? 1 : 0)); }
  std::int64_t inner_stride() const { return round_up<std::int64_t>(group.gate_up.rows, 16); }
  /// A step of one token needs no permutation: its experts' rows are 0, 1, … in the router's order.
  bool single() const { return tokens == 1 && routing != nullptr; }
  /// Sets the work list of `gemm`.
  void set_work(Gemm& gemm, const GroupScratch& s) const {
    if (!single()) {
      gemm.token_blocks = s.token_blocks;
      gemm.token_block_count = s.token_block_count;
      return;
    }
    gemm.single_ids = routing->ids.as<const std::int32_t>();
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
    p.ids = routing->ids.as<const std::int32_t>();
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
      const std::int64_t bytes = matrix.tiles * kTileRows * matrix.width_bytes;
      return Gemm::L2Prefetch{matrix.weight.as<const std::uint8_t>() + count * bytes, bytes};
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

/// The outputs in permuted order, the shared expert's first.
struct GroupRows {
  const Bf16* y;
  const std::int32_t* permuted_row;  // [T, A] pair -> permuted row; null: pairs are in order
};

namespace {

/// Whether launch_gemm_prefill_portable() takes both GEMMs of `group`, whose outputs lie in scratch
/// memory.
bool takes_portable_prefill(const ExpertGroup& group) {
  Gemm first = group.gate_up.parameters();
  first.epilogue = Epilogue::silu_mul;
  Gemm second = group.down.parameters();
  second.out_stride = second.rows;
  return prefill_portable_supports(first) && prefill_portable_supports(second);
}

std::int64_t expert_scratch_bytes(const PlacedExperts& placed,
                                  std::int64_t tokens,
                                  std::int64_t top_k) {
  ScratchAllocator scratch_memory(nullptr);
  if (placed.routed)
    GroupScratch(scratch_memory, tokens, top_k, placed.routed->gate_up.count, *placed.routed);
  if (placed.shared) GroupScratch(scratch_memory, tokens, 0, 0, *placed.shared);
  if (placed.routed) scratch_memory.take<std::uint8_t>(tokens * placed.routed->gate_up.width_bytes);
  if (placed.shared) scratch_memory.take<std::uint8_t>(tokens * placed.shared->gate_up.width_bytes);
  return scratch_memory.used();
}

}  // namespace

GroupKernels CudaBackend::choose_group_kernels(const GroupCall& call) const {
  const auto& [group, x, routing, tokens, first, count, total, shared] = call;
  const std::int64_t top_k = call.top_k();
  Gemm p;
  set_activation(p, activation_for(x, group.gate_up.type));
  // A token block has room for twice the tokens that an expert gets on average, so that few experts
  // need a second block: at least 32 on wgmma (smaller MMAs are not faster) or with a shared
  // expert, else 16. Exception: blocks of 8 up to 8 tokens; and, without a shared expert, up to 16
  // tokens if 8 are room enough, or up to 64 where experts_down.cuh takes them: few whole experts
  // and, on mma.sync, thin ones.
  const std::int64_t experts = std::max<std::int64_t>(total, 1);
  const std::int64_t roomy_tokens =  // twice an expert's average
      routing != nullptr ? ceil_div(2 * tokens * top_k, experts) : tokens;
  const bool fp8 = group.gate_up.type == TileType::fp8 && group.down.type == TileType::fp8;
  const bool down_fused_few = fp8 && thin_or_few(group.down.width_bytes, count) &&
                              (!wgmma_ || group.down.width_bytes > kDownThinWidth);
  const std::int64_t few_tokens_max = down_fused_few ? 64 : 16;
  const std::int64_t least = wgmma_ || shared ? 32 : 16;
  const int tiles = tokens <= 8 || (tokens <= few_tokens_max && roomy_tokens <= 8 && !shared)
                        ? 1
                        : choose_token_tiles(std::max(std::min(tokens, roomy_tokens), least));
  // With many rows per expert the GEMMs are compute-bound, and the prefill kernel has larger tiles.
  const std::int64_t prefill_rows = group.down.width_bytes <= kDownThinWidth
                                        ? kPrefillRowsPerThinExpert
                                    : count <= kFewExpertsMax ? kPrefillRowsPerFewExperts
                                                              : kPrefillRowsPerExpert;
  const std::int64_t pairs_wanted =
      (wgmma_ ? prefill_rows : kPrefillRowsPerExpertPortable) * experts;
  const std::int64_t all_pairs = routing != nullptr ? tokens * top_k : tokens;
  const bool has_scales = group.gate_up.type != TileType::bf16 && group.down.type != TileType::bf16;
  const bool prefill = all_pairs >= pairs_wanted &&
                       (wgmma_ ? routing != nullptr && has_scales && p.x_bytes % 16 == 0
                               : prefill_portable_ && fp8 && takes_portable_prefill(group));
  // Token rows of full blocks are a fair part of the L2 traffic. A work tile of two weight tiles
  // reads them once for both.
  constexpr std::int64_t kPairTokens = 16;
  const bool pairs =
      wgmma_ && group.gate_up.type == TileType::fp8 && tiles == 4 && roomy_tokens >= kPairTokens;
  // One token meets few experts.
  const std::int64_t met = call.single() ? top_k + 1 : count;
  const bool down_quantises =
      !prefill &&
      takes_experts_down(group.down.parameters(), group.down.columns, met, tiles, wgmma_);
  return {.prefill = prefill,
          .token_tiles = tiles,
          .block_tokens = !prefill ? 8 * tiles
                          : wgmma_ ? kPrefillTokensMax
                                   : kPortablePrefillTokensMax,
          .block_tokens_step = !prefill ? 8 * tiles
                               : wgmma_ ? kPrefillTokenStep
                                        : kPortablePrefillTokenStep,
          .row_tiles = pairs ? 2 : 1,
          .interleave_token_blocks = down_fused_few && !shared && tiles == 1,
          .down_quantises = down_quantises,
          .down_overlaps = down_quantises && tokens >= kOverlapTokens};
}

Status CudaBackend::permute_group(const GroupCall& call,
                                  const GroupKernels& kernels,
                                  const GroupScratch& s) {
  KOHO_CUDA_TRY(launch_expert_permutation(
      {.ids = call.routing != nullptr ? call.routing->ids.as<const std::int32_t>() : nullptr,
       .tokens = call.tokens,
       .top_k = static_cast<int>(call.top_k()),
       .first = static_cast<int>(call.first),
       .count = static_cast<int>(call.count),
       .shared = call.shared,
       .block_tokens = kernels.block_tokens,
       .block_tokens_step = kernels.block_tokens_step,
       .rows = s.rows,
       .permuted_row = s.permuted_row,
       .row_count = s.row_count,
       .token_blocks = s.token_blocks,
       .token_block_count = s.token_block_count,
       .rows_stored = s.rows_stored,
       .rows_stored_count = kernels.down_overlaps ? static_cast<int>(s.token_blocks_max) : 0,
       .releases_at_once = call.tokens < kOverlapTokens},
      stream_));
  return {};
}

Status CudaBackend::gather_group(const GroupCall& call, const GroupScratch& s, Gemm& p) {
  auto* gathered = reinterpret_cast<std::uint8_t*>(s.y);
  const auto scales = static_cast<int>(gathered_scales_of(call.group.gate_up));
  KOHO_CUDA_TRY(launch_expert_gather({.out = gathered,
                                      .out_stride_bytes = p.x_bytes,
                                      .out_scales = s.gathered_scales,
                                      .x = p.x,
                                      .x_stride_bytes = p.x_stride_bytes,
                                      .x_scales = p.x_scales,
                                      .x_scales_stride = p.x_scales_stride,
                                      .permuted_row = s.permuted_row,
                                      .tokens = call.tokens,
                                      .top_k = static_cast<int>(call.top_k()),
                                      .shared = call.shared,
                                      .row_bytes = p.x_bytes,
                                      .row_scales = scales},
                                     stream_));
  p.x = gathered;
  p.x_stride_bytes = p.x_bytes;
  p.x_scales = s.gathered_scales;
  p.x_scales_stride = scales;
  return {};
}

Status CudaBackend::run_group_gemm(const Gemm& p,
                                   const GroupCall& call,
                                   const GroupKernels& kernels) {
  if (!kernels.prefill) return run_grouped_decode_gemm(p);
  if (wgmma_)
    return run_prefill_gemm(p, call.rows_max(), kernels.block_tokens, device_.multiprocessors);
  KOHO_CUDA_TRY(launch_gemm_prefill_portable(p, device_.multiprocessors, stream_));
  return {};
}

Status CudaBackend::multiply_gate_up(const GroupCall& call,
                                     const GroupKernels& kernels,
                                     const GroupScratch& s) {
  const ExpertGroup& group = call.group;
  Gemm p = group.gate_up.parameters();
  set_activation(p, activation_for(call.x, group.gate_up.type));
  call.set_work(p, s);
  if (kernels.prefill && wgmma_)
    KOHO_TRY(gather_group(call, s, p));
  else if (call.single())
    p.single_row = true;
  else
    p.x_rows = s.rows;
  if (call.shared && !kernels.prefill) {
    p.first_block_expert = static_cast<int>(call.count);
    if (call.single()) call.prefetch_shared(p);
  }
  if (kernels.down_overlaps) p.rows_stored = s.rows_stored;
  p.token_tiles = kernels.token_tiles;
  p.interleave_token_blocks = kernels.interleave_token_blocks;
  p.row_tiles = kernels.row_tiles;
  p.out = s.inner;
  p.out_stride = call.inner_stride();
  p.epilogue = Epilogue::silu_mul;
  return run_group_gemm(p, call, kernels);
}

Status CudaBackend::multiply_down(const GroupCall& call,
                                  const GroupKernels& kernels,
                                  const GroupScratch& s) {
  const TiledWeights& down = call.group.down;
  const std::int64_t stride = call.inner_stride();
  Gemm d = down.parameters();
  call.set_work(d, s);
  // The quantising kernel runs between the permutation and this GEMM; bf16 has none.
  d.token_blocks_early = down.type != TileType::bf16;
  d.token_tiles = kernels.token_tiles;
  d.row_tiles = d.type == TileType::fp8 ? kernels.row_tiles : 1;
  d.out = s.y;
  d.out_stride = down.rows;
  if (kernels.down_overlaps) {
    constexpr std::int64_t kWarps = 4;  // that multiply a weight tile
    d.rows_stored = s.rows_stored;
    d.rows_stored_full = static_cast<std::uint32_t>(kWarps * call.group.gate_up.tiles);
  }
  if (down.type == TileType::bf16 || kernels.down_quantises) {
    d.x = reinterpret_cast<const std::uint8_t*>(s.inner);
    d.x_stride_bytes = 2 * stride;
    d.x_bytes = static_cast<int>(2 * down.columns);
  } else {
    KOHO_CUDA_TRY(launch_quantize_rows(s.inner_rows,
                                       {.x = s.inner,
                                        .stride = stride,
                                        .rows = call.rows_max(),
                                        .rows_count = call.single() ? nullptr : s.row_count,
                                        .width = down.columns,
                                        .multiprocessors = device_.multiprocessors},
                                       stream_));
    const bool block = down.type == TileType::fp8_block;
    d.x = block ? s.inner_rows.block_quantized : s.inner_rows.quantized;
    d.x_stride_bytes = stride;
    d.x_bytes = static_cast<int>(down.columns);
    d.x_scales = block ? s.inner_rows.block_scales : s.inner_rows.scales;
    d.x_scales_stride = s.inner_rows.block_scales_stride;
  }
  if (!kernels.down_quantises) return run_group_gemm(d, call, kernels);
  KOHO_CUDA_TRY(wgmma_ ? launch_experts_down_wgmma(d, device_.multiprocessors, stream_)
                       : launch_experts_down_portable(d, device_.multiprocessors, stream_));
  return {};
}

Result<GroupRows> CudaBackend::run_group(const GroupCall& call, std::byte*& scratch_at) {
  ScratchAllocator scratch_memory(scratch_at);
  const GroupScratch s(scratch_memory, call.tokens, call.top_k(), call.count, call.group);
  scratch_at += scratch_memory.used();
  if (wgmma_ && call.routing != nullptr && call.tokens <= kThinTokensMax) {
    const ExpertsThin thin = call.thin(s);
    if (experts_thin_supports(thin)) {
      KOHO_CUDA_TRY(launch_experts_thin(thin, device_.multiprocessors, stream_));
      return GroupRows{s.y, nullptr};
    }
  }
  const GroupKernels kernels = choose_group_kernels(call);
  if (!call.single()) KOHO_TRY(permute_group(call, kernels, s));
  KOHO_TRY(multiply_gate_up(call, kernels, s));
  KOHO_TRY(multiply_down(call, kernels, s));
  return GroupRows{s.y, call.single() ? nullptr : s.permuted_row};
}

Status CudaBackend::align_rows(Activation& x, const TiledWeights& matrix, std::byte*& scratch_at) {
  TensorView& rows = matrix.type == TileType::bf16  ? x.values
                     : matrix.type == TileType::fp8 ? x.quantized
                                                    : x.block_quantized;
  Gemm p;
  set_activation(p, activation_for(x, matrix.type));
  if (has_aligned_rows(p)) return {};
  KOHO_CUDA_TRY(launch_pad_rows({.out = reinterpret_cast<std::uint8_t*>(scratch_at),
                                 .out_stride = matrix.width_bytes,
                                 .x = p.x,
                                 .x_stride = p.x_stride_bytes,
                                 .rows = rows.size(0),
                                 .bytes = p.x_bytes},
                                stream_));
  rows.data = scratch_at;
  rows.strides[0] = matrix.width_bytes / dtype_bytes(rows.dtype);
  scratch_at += round_up(rows.size(0) * matrix.width_bytes, kScratchAlignment);
  return {};
}

Status CudaBackend::do_experts(TensorView out,
                               const Activation& x,
                               const Routing& routing,
                               const Experts& weights) {
  KOHO_TRY(bind());
  KOHO_TRY(finish_loading());
  const auto& placed = static_cast<const PlacedExperts&>(*weights.placed);
  if (placed.mixed_format != nullptr) return run_mixed_format(out, x, routing, weights);
  const std::int64_t tokens = out.size(0);
  const std::int64_t top_k = routing.ids.size(1);
  KOHO_TRY_ASSIGN(std::byte * at, scratch(expert_scratch_bytes(placed, tokens, top_k)));
  Activation aligned = x;
  if (placed.routed) KOHO_TRY(align_rows(aligned, placed.routed->gate_up, at));
  if (placed.shared) KOHO_TRY(align_rows(aligned, placed.shared->gate_up, at));
  ExpertCombine combine;
  combine.weights = routing.weights.as<const float>();
  combine.out = out.as<Bf16>();
  combine.tokens = tokens;
  combine.hidden = static_cast<int>(weights.hidden);
  if (placed.routed) {
    KOHO_TRY_ASSIGN(const GroupRows rows, run_group({.group = *placed.routed,
                                                     .x = aligned,
                                                     .routing = &routing,
                                                     .tokens = tokens,
                                                     .first = weights.first,
                                                     .count = weights.count,
                                                     .total = placed.total,
                                                     .shared = placed.shared_in_routed},
                                                    at));
    combine.y = rows.y;
    combine.permuted_row = rows.permuted_row;
    if (rows.permuted_row == nullptr) {
      combine.ids = routing.ids.as<const std::int32_t>();
      combine.first = static_cast<int>(weights.first);
      combine.count = static_cast<int>(weights.count);
      combine.first_row = placed.shared_in_routed ? static_cast<int>(tokens) : 0;
    }
    combine.top_k = static_cast<int>(top_k);
    if (placed.shared_in_routed) combine.shared = rows.y;
  }
  if (placed.shared) {
    KOHO_TRY_ASSIGN(const GroupRows rows, run_group({.group = *placed.shared,
                                                     .x = aligned,
                                                     .routing = nullptr,
                                                     .tokens = tokens,
                                                     .first = 0,
                                                     .count = 0,
                                                     .total = 0,
                                                     .shared = true},
                                                    at));
    combine.shared = rows.y;
  }
  combine.discards = tokens >= kOverlapTokens && weights.hidden % 256 == 0;
  KOHO_CUDA_TRY(launch_expert_combine(combine, stream_));
  return {};
}

}  // namespace koho::cuda
