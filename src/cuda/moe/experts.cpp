// SPDX-License-Identifier: Apache-2.0
// The experts operator: permutes a step's token-expert pairs, runs both grouped GEMMs of the layer,
// and combines the outputs. choose_group_kernels.cpp chooses the kernels. Experts that are linear
// layers are linear_experts.cpp's.
#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/gemm/gemm_operands.h"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/moe/expert_group.h"
#include "cuda/moe/expert_permutation.h"
#include "cuda/moe/experts_down.h"
#include "cuda/moe/experts_thin.h"

namespace koho::cuda {
namespace {

std::int64_t expert_scratch_bytes(const PlacedExperts& placed,
                                  std::int64_t tokens,
                                  std::int64_t top_k) {
  ScratchAllocator scratch_memory(nullptr);
  if (placed.shared) LinearExpertScratch(scratch_memory, {}, tokens, *placed.shared);
  if (placed.routed) {
    GroupScratch(scratch_memory, tokens, top_k, placed.routed->gate_up.count, *placed.routed);
    scratch_memory.take<std::uint8_t>(tokens * placed.routed->gate_up.width_bytes);
  }
  return scratch_memory.used();
}

/// What the linear layers of an expert take themselves: rows that are padded.
std::int64_t padded_bytes(const LinearExpert& expert, std::int64_t tokens) {
  std::int64_t width = 0;
  for (const Linear* linear : {&expert.gate_up, &expert.down})
    for (const LinearSegment& segment : static_cast<const PlacedLinear&>(*linear->placed).segments)
      width = std::max(width, segment.weight.width_bytes);
  return tokens * width;
}

}  // namespace

Status CudaBackend::permute_group(const GroupCall& call,
                                  const GroupKernels& kernels,
                                  const GroupScratch& s) {
  KOHO_CUDA_TRY(launch_expert_permutation(
      {.ids = call.routing.ids.as<const std::int32_t>(),
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
  call.set_work(p, group.gate_up, s, kernels.block_tokens);
  if (kernels.prefill && wgmma_)
    KOHO_TRY(gather_group(call, s, p));
  else if (call.single())
    p.single_row = true;
  else
    p.x_rows = s.rows;
  if (call.shared && !kernels.prefill) {
    if (!call.narrow()) p.first_block_expert = static_cast<int>(call.count);
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
  call.set_work(d, down, s, kernels.block_tokens);
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
    d.shared.rows_stored_full = static_cast<std::uint32_t>(kWarps * call.group.gate_up.last_tiles);
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

Status CudaBackend::multiply_narrow(const GroupCall& call, const GroupScratch& s) {
  const ExpertGroup& group = call.group;
  const std::int64_t stride = call.inner_stride();
  const std::int64_t first = call.tokens * call.top_k();  // its rows are the last
  const auto last_of = [&](const TiledWeights& matrix) {
    Gemm p = matrix.parameters();
    const std::int64_t rows = call.count * matrix.tiles * kTileRows;
    p.weight += rows * matrix.width_bytes;
    p.row_scales += rows;
    p.tiles = static_cast<int>(matrix.last_tiles);
    p.width_bytes = static_cast<int>(matrix.last_width_bytes);
    p.tokens = static_cast<int>(call.tokens);
    return p;
  };
  Gemm p = last_of(group.gate_up);
  set_activation(p, activation_for(call.x, group.gate_up.type));
  p.rows = static_cast<int>(group.last_ffn);
  p.out = s.inner + first * stride;
  p.out_stride = stride;
  p.epilogue = Epilogue::silu_mul;
  KOHO_TRY(run_prefill_gemm(p, call.tokens, kPrefillTokensMax, device_.multiprocessors));
  RowOutputs quantized = s.inner_rows;
  quantized.quantized += first * stride;
  quantized.scales += first;
  KOHO_CUDA_TRY(launch_quantize_rows(quantized,
                                     {.x = s.inner + first * stride,
                                      .stride = stride,
                                      .rows = call.tokens,
                                      .rows_count = nullptr,
                                      .width = group.last_ffn,
                                      .multiprocessors = device_.multiprocessors},
                                     stream_));
  Gemm d = last_of(group.down);
  d.x = quantized.quantized;
  d.x_stride_bytes = stride;
  d.x_bytes = static_cast<int>(group.last_ffn);
  d.x_scales = quantized.scales;
  d.out = s.y + first * group.down.rows;
  d.out_stride = d.rows;
  return run_prefill_gemm(d, call.tokens, kPrefillTokensMax, device_.multiprocessors);
}

Result<GroupRows> CudaBackend::run_group(const GroupCall& call, std::byte*& scratch_at) {
  ScratchAllocator scratch_memory(scratch_at);
  const GroupScratch s(scratch_memory, call.tokens, call.top_k(), call.count, call.group);
  scratch_at += scratch_memory.used();
  if (wgmma_ && call.tokens <= kThinTokensMax) {
    const ExpertsThin thin = call.thin(s);
    if (experts_thin_supports(thin)) {
      KOHO_CUDA_TRY(launch_experts_thin(thin, device_.multiprocessors, stream_));
      return GroupRows{s.y, call.shared ? s.y : nullptr, nullptr};
    }
  }
  const GroupKernels kernels = choose_group_kernels(call);
  const bool apart = kernels.prefill && call.narrow();
  if (apart) KOHO_TRY(multiply_narrow(call, s));
  GroupCall together = call;
  together.shared = call.shared && !apart;
  if (!call.single()) KOHO_TRY(permute_group(together, kernels, s));
  KOHO_TRY(multiply_gate_up(together, kernels, s));
  KOHO_TRY(multiply_down(together, kernels, s));
  const Bf16* shared = apart ? s.y + call.tokens * call.top_k() * call.group.down.rows : s.y;
  return GroupRows{s.y, call.shared ? shared : nullptr, call.single() ? nullptr : s.permuted_row};
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
  std::int64_t linear_bytes = 0;  // linear layers use scratch memory from its begin
  if (placed.shared)
    linear_bytes = round_up(padded_bytes(*placed.shared, tokens), kScratchAlignment);
  KOHO_TRY_ASSIGN(std::byte * at,
                  scratch(linear_bytes + expert_scratch_bytes(placed, tokens, top_k)));
  at += linear_bytes;
  ExpertCombine combine;
  combine.weights = routing.weights.as<const float>();
  combine.out = out.as<Bf16>();
  combine.tokens = tokens;
  combine.hidden = static_cast<int>(weights.hidden);
  if (placed.shared) {
    ScratchAllocator scratch_memory(at);
    const LinearExpertScratch s(scratch_memory, device_id_, tokens, *placed.shared);
    at += scratch_memory.used();
    KOHO_TRY(run_linear_expert(s.y, x, *placed.shared, s.gate_up, s.inner));
    combine.shared = s.y.as<const Bf16>();
  }
  if (placed.routed) {
    Activation aligned = x;
    KOHO_TRY(align_rows(aligned, placed.routed->gate_up, at));
    KOHO_TRY_ASSIGN(const GroupRows rows, run_group({.group = *placed.routed,
                                                     .x = aligned,
                                                     .routing = routing,
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
    if (rows.shared != nullptr) combine.shared = rows.shared;
  }
  combine.discards = tokens >= kOverlapTokens && weights.hidden % 256 == 0;
  KOHO_CUDA_TRY(launch_expert_combine(combine, stream_));
  return {};
}

}  // namespace koho::cuda
