// SPDX-License-Identifier: Apache-2.0
// The operators that are matrix products: linear and experts.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/device/tensor_map.h"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/prefill_token_blocks.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/moe/expert_permutation.h"

namespace koho::cuda {
namespace {

constexpr std::int64_t kDecodeGemmTokensMax =
    128;  // Hopper's kernel of one matrix takes up to so many
constexpr std::int64_t kPrefillRowsPerExpert =
    96;  // rows an expert from which on they are gathered

/// Hands out parts of the scratch memory.
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

/// Columns of 8 tokens for entries of about `tokens` tokens.
int token_tiles(std::int64_t tokens) {
  return tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8;
}

/// The form of `x` that weights of `type` read.
struct XForm {
  const TensorView* data;
  const TensorView* scales;
};
XForm form_of(const Activation& x, TileType type) {
  if (type == TileType::bf16) return {&x.values, nullptr};
  if (type == TileType::fp8) return {&x.quantized, &x.scales};
  return {&x.block_quantized, &x.block_scales};
}

void set_x(Gemm& p, const XForm& form) {
  p.x = reinterpret_cast<const std::uint8_t*>(form.data->data);
  p.x_bytes = static_cast<int>(form.data->size(1) * dtype_bytes(form.data->dtype));
  p.x_stride_bytes = form.data->stride(0) * dtype_bytes(form.data->dtype);
  if (form.scales == nullptr) return;
  p.x_scales = form.scales->as<const float>();
  if (form.scales->shape.rank() == 2) p.x_scales_stride = form.scales->stride(0);
}

bool copies_aligned(const Gemm& p) {
  return reinterpret_cast<std::uintptr_t>(p.x) % 16 == 0 && p.x_stride_bytes % 16 == 0;
}

/// Whether experts_down.cuh is fast with `count` experts whose second matrix has rows of
/// `width_bytes`. What it saves of whole experts' time, the quantising kernel and the wait for it,
/// is 1 to 4 us however many they are: 20 and 40 experts gain 2 to 4 % by it, 129 lose 2
/// (docs/kernels/experts.md).
bool thin_or_few(std::int64_t width_bytes, std::int64_t count) {
  constexpr std::int64_t kWideExpertsMax = 40;
  return width_bytes <= kDownThinWidth ||
         (width_bytes <= kDownWidthMax && count <= kWideExpertsMax);
}

/// Whether launch_experts_down_*() is to multiply the second matrices of `count` experts, of
/// `columns`, for entries of `tiles` columns of 8 tokens.
bool takes_experts_down(
    const Gemm& p, std::int64_t columns, std::int64_t count, int tiles, bool wgmma) {
  const bool has_form = tiles == 1 || (wgmma && tiles == 4 && p.width_bytes <= kDownThinWidth);
  return has_form && thin_or_few(p.width_bytes, count) && p.type == TileType::fp8 &&
         columns % 8 == 0 && p.rows % 4 == 0 && p.bias == nullptr;
}

/// Whether run_prefill_gemm() multiplies these tokens and not cuBLASLt.
bool takes_prefill(const Gemm& p, int multiprocessors) {
  return prefill_utilization(prefill_tiling(p, kPrefillTokensMax, multiprocessors)) >=
         kPrefillUtilizationMin;
}

}  // namespace

/// Scratch of one expert group: what its rows become on the way.
struct GroupScratch {
  std::int32_t* rows;
  std::int32_t* permuted_row;
  std::int32_t* row_count;
  std::int32_t* token_block_count;
  ExpertTokenBlock* token_blocks;
  Bf16* inner;  // [rows, F]
  RowOutputs inner_forms;
  // [rows, H]. In prefill the gathered rows of x lie here first: they are no wider, and done with
  // when y is written.
  Bf16* y;
  float* gathered_scales;  // [rows]

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
    token_blocks = scratch_memory.take<ExpertTokenBlock>(
        expert_token_blocks_max(tokens, static_cast<int>(top_k), static_cast<int>(count), 8));
    const std::int64_t stride = round_up<std::int64_t>(ffn, 16);  // rows of every form stay aligned
    inner = scratch_memory.take<Bf16>(rows_max * stride);
    if (group.down.type == TileType::fp8) {
      inner_forms.quantized = scratch_memory.take<std::uint8_t>(rows_max * stride);
      inner_forms.quantized_stride = stride;
      inner_forms.scales = scratch_memory.take<float>(rows_max);
    } else if (group.down.type == TileType::fp8_block) {
      inner_forms.block_quantized = scratch_memory.take<std::uint8_t>(rows_max * stride);
      inner_forms.block_quantized_stride = stride;
      inner_forms.block_scales_stride = ceil_div<std::int64_t>(ffn, kQuantBlock);
      inner_forms.block_scales =
          scratch_memory.take<float>(rows_max * inner_forms.block_scales_stride);
    }
    y = scratch_memory.take<Bf16>(rows_max * group.down.rows);
    gathered_scales = scratch_memory.take<float>(rows_max);
  }
};

/// What a group of experts does in one call: experts first .. first + count - 1, of `total` that
/// the router chose among, multiply the rows that `routing` sends to them; and one behind them
/// every token, if it is `shared`. Null routing: that one alone.
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
  /// One token needs no plan: its experts' rows are 0, 1, … in order of its choice.
  bool single() const { return tokens == 1 && routing != nullptr; }
  /// Which rows of whose weights `gemm` multiplies.
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
};

/// How it does that.
struct GroupForm {
  bool prefill;                  // by the kernel of many tokens, rows gathered
  int tiles;                     // columns of 8 tokens that an entry has room for, unless prefill
  int columns;                   // tokens that an entry has room for
  int row_tiles;                 // of an item
  bool interleave_token_blocks;  // an expert's entries take a tile one after the other
};

/// What came of it: sorted rows' outputs, those of the shared expert first.
struct GroupRows {
  const Bf16* y;
  const std::int32_t* permuted_row;  // [T, A] (token, slot) -> sorted row; null: single()
};

Gemm TiledWeights::parameters() const {
  Gemm p;
  p.weight = weight.as<const std::uint8_t>();
  p.row_scales = row_scales.as<const float>();
  p.block_scales = block_scales.as<const float>();
  p.bias = bias.as<const Bf16>();
  p.tiles = static_cast<int>(tiles);
  p.rows = static_cast<int>(rows);
  p.width_bytes = static_cast<int>(width_bytes);
  p.type = type;
  return p;
}

Result<std::byte*> CudaBackend::scratch(std::int64_t bytes) {
  if (scratch_.bytes() < bytes) {
    if (*recordings_ > 0)
      return make_error(ErrorCode::internal,
                        "an operator needs {} bytes of scratch memory, recordings hold on to {}",
                        bytes, scratch_.bytes());
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
    scratch_ = DeviceBlock();
    KOHO_TRY_ASSIGN(scratch_, DeviceBlock::allocate(memory_, bytes, "scratch memory"));
  }
  return scratch_.as<std::byte>();
}

Status CudaBackend::run_decode_gemm(const Gemm& p) {
  return launch_decode_gemm(p, choose_decode_gemm_config(p, device_.multiprocessors), stream_);
}

Status CudaBackend::run_grouped_decode_gemm(const Gemm& p) {
  KOHO_CUDA_TRY(wgmma_ ? launch_gemm_grouped_decode_sm90(p, device_.multiprocessors, stream_)
                       : launch_gemm_grouped_decode_portable(p, device_.multiprocessors, stream_));
  return {};
}

Result<bool> CudaBackend::multiply_with_cublaslt(const Gemm& p, const LinearSegment& segment) {
  CublasLtProblem product{.gemm = p, .weight = segment.rows.as<void>(), .sums = nullptr};
  if (cublaslt_->scales() == CublasLtScales::separate) {
    KOHO_TRY_ASSIGN(std::byte * sums, scratch(cublaslt_sums_bytes(p.rows, p.tokens)));
    product.sums = reinterpret_cast<float*>(sums);
  }
  return cublaslt_->multiply(product, stream_);
}

Status CudaBackend::multiply_segment(TensorView out,
                                     const Activation& x,
                                     const LinearSegment& segment) {
  const TiledWeights& matrix = segment.matrix;
  const XForm form = form_of(x, matrix.type);
  const std::int64_t tokens = out.size(0);
  const bool f32 = out.dtype == DType::f32;
  std::byte* destination = out.data + segment.first_column * dtype_bytes(out.dtype);
  Gemm p = matrix.parameters();
  set_x(p, form);
  p.tokens = static_cast<int>(tokens);
  p.out = destination;
  p.out_stride = out.stride(0);
  p.epilogue = f32 ? Epilogue::f32 : Epilogue::bf16;
  const bool aligned = copies_aligned(p);
  if (segment.rows.bytes() > 0 && tokens > kDecodeGemmTokensMax && !f32 && aligned &&
      out.stride(0) % 8 == 0 && reinterpret_cast<std::uintptr_t>(destination) % 16 == 0) {
    if (wgmma_ && takes_prefill(p, device_.multiprocessors))
      return run_prefill_gemm(p, tokens, kPrefillTokensMax, device_.multiprocessors);
    KOHO_TRY_ASSIGN(const bool multiplied, multiply_with_cublaslt(p, segment));
    if (multiplied) return {};
  }
  if (!aligned) {
    const std::int64_t stride = matrix.width_bytes;
    KOHO_TRY_ASSIGN(std::byte * padded, scratch(tokens * stride));
    KOHO_CUDA_TRY(launch_pad_rows({.out = reinterpret_cast<std::uint8_t*>(padded),
                                   .out_stride = stride,
                                   .x = p.x,
                                   .x_stride = p.x_stride_bytes,
                                   .rows = tokens,
                                   .bytes = p.x_bytes},
                                  stream_));
    p.x = reinterpret_cast<const std::uint8_t*>(padded);
    p.x_stride_bytes = stride;
    p.x_bytes = static_cast<int>(stride);
  }
  p.token_tiles = token_tiles(tokens);
  p.split_k = choose_split_k(p.tiles, p.width_bytes);
  if (!wgmma_ || p.type == TileType::fp8_block) return run_grouped_decode_gemm(p);
  return tokens <= kDecodeGemmTokensMax ? run_decode_gemm(p)
                                        : run_prefill_gemm(p, tokens, 128, device_.multiprocessors);
}

Status CudaBackend::run_prefill_gemm(const Gemm& p,
                                     std::int64_t rows,
                                     int columns,
                                     int multiprocessors) {
  PrefillTensorMaps maps;
  KOHO_TRY(make_prefill_tensor_maps(
      maps, {.data = p.x, .row_bytes = p.x_bytes, .rows = rows, .stride_bytes = p.x_stride_bytes},
      columns));
  // Of experts a box could end in the next one's rows.
  maps.stores = p.token_blocks == nullptr && p.epilogue == Epilogue::bf16 &&
                columns == kPrefillTokensMax && p.out_stride % 8 == 0 &&
                reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  if (maps.stores)
    KOHO_TRY(
        make_tensor_map(maps.out,
                        {.data = p.out,
                         .row_bytes = p.rows * static_cast<std::int64_t>(sizeof(Bf16)),
                         .rows = rows,
                         .stride_bytes = p.out_stride * static_cast<std::int64_t>(sizeof(Bf16))},
                        kPrefillTokenStep));
  KOHO_CUDA_TRY(launch_gemm_prefill_sm90(p, maps, columns, multiprocessors, stream_));
  return {};
}

Status CudaBackend::do_linear(TensorView out, const Activation& x, const Linear& weight) {
  KOHO_TRY(bind());
  KOHO_TRY(finish_loading());
  const auto& placed = static_cast<const PlacedLinear&>(*weight.placed);
  for (const LinearSegment& segment : placed.segments) KOHO_TRY(multiply_segment(out, x, segment));
  return {};
}

GroupForm CudaBackend::form_of_group(const GroupCall& call) const {
  const auto& [group, x, routing, tokens, first, count, total, shared] = call;
  const std::int64_t top_k = call.top_k();
  Gemm p;
  set_x(p, form_of(x, group.gate_up.type));
  // Twice as many tokens as an expert gets, so that few experts need a second entry; beyond few
  // tokens, or with an expert that gets all, room for 32 at least, since no form of wgmma with less
  // is faster: of mma.sync that of 16 is. But 8 for few whole experts, whose second matrix then
  // quantises their rows itself; without wgmma, which widens an entry's quantised values for each tile, for
  // thin ones too.
  const std::int64_t experts = std::max<std::int64_t>(total, 1);
  const std::int64_t likely = routing != nullptr ? ceil_div(2 * tokens * top_k, experts) : tokens;
  const bool fp8 = group.gate_up.type == TileType::fp8 && group.down.type == TileType::fp8;
  const bool longer_few = fp8 && thin_or_few(group.down.width_bytes, count) &&
                          (!wgmma_ || group.down.width_bytes > kDownThinWidth);
  const std::int64_t few_tokens = longer_few ? 64 : 16;
  const std::int64_t least = wgmma_ || shared ? 32 : 16;
  const int tiles = tokens <= 8 || (tokens <= few_tokens && likely <= 8 && !shared)
                        ? 1
                        : token_tiles(std::max(std::min(tokens, likely), least));
  // With many rows an expert their arithmetic decides: the other kernel, whose tiles are larger.
  const bool prefill = wgmma_ && routing != nullptr &&
                       tokens * top_k >= kPrefillRowsPerExpert * experts && fp8 &&
                       p.x_bytes % 16 == 0;
  // With many tokens an entry these are a part of what passes through L2: for two tiles at once.
  constexpr std::int64_t kPairTokens = 16;
  const bool pairs =
      wgmma_ && group.gate_up.type == TileType::fp8 && tiles == 4 && likely >= kPairTokens;
  return {.prefill = prefill,
          .tiles = tiles,
          .columns = prefill ? kPrefillTokensMax : 8 * tiles,
          .row_tiles = pairs ? 2 : 1,
          .interleave_token_blocks = longer_few && !shared && tiles == 1};
}

Status CudaBackend::plan_group(const GroupCall& call,
                               const GroupForm& form,
                               const GroupScratch& s) {
  KOHO_CUDA_TRY(launch_expert_permutation(
      {.ids = call.routing != nullptr ? call.routing->ids.as<const std::int32_t>() : nullptr,
       .tokens = call.tokens,
       .top_k = static_cast<int>(call.top_k()),
       .first = static_cast<int>(call.first),
       .count = static_cast<int>(call.count),
       .shared = call.shared,
       .block_tokens = form.columns,
       .block_tokens_step = form.prefill ? kPrefillTokenStep : form.columns,
       .rows = s.rows,
       .permuted_row = s.permuted_row,
       .row_count = s.row_count,
       .token_blocks = s.token_blocks,
       .token_block_count = s.token_block_count},
      stream_));
  return {};
}

Status CudaBackend::gather_group(const GroupCall& call, const GroupScratch& s, Gemm& p) {
  auto* gathered = reinterpret_cast<std::uint8_t*>(s.y);
  KOHO_CUDA_TRY(launch_expert_gather({.out = gathered,
                                      .out_stride_bytes = p.x_bytes,
                                      .out_scales = s.gathered_scales,
                                      .x = p.x,
                                      .x_stride_bytes = p.x_stride_bytes,
                                      .x_scales = p.x_scales,
                                      .permuted_row = s.permuted_row,
                                      .tokens = call.tokens,
                                      .top_k = static_cast<int>(call.top_k()),
                                      .shared = call.shared,
                                      .row_bytes = p.x_bytes},
                                     stream_));
  p.x = gathered;
  p.x_stride_bytes = p.x_bytes;
  p.x_scales = s.gathered_scales;
  return {};
}

Status CudaBackend::multiply_gate_up(const GroupCall& call,
                                     const GroupForm& form,
                                     const GroupScratch& s) {
  const ExpertGroup& group = call.group;
  Gemm p = group.gate_up.parameters();
  set_x(p, form_of(call.x, group.gate_up.type));
  call.set_work(p, s);
  if (form.prefill)
    KOHO_TRY(gather_group(call, s, p));
  else if (call.single())
    p.single_row = true;
  else
    p.x_rows = s.rows;
  if (call.shared && !form.prefill) {
    p.first_block_expert = static_cast<int>(call.count);
    const auto shared_of = [&](const TiledWeights& matrix) {
      const std::int64_t bytes = matrix.tiles * kTileRows * matrix.width_bytes;
      return Gemm::L2Prefetch{matrix.weight.as<const std::uint8_t>() + call.count * bytes, bytes};
    };
    if (call.single()) {
      p.l2_prefetch[0] = shared_of(group.gate_up);
      p.l2_prefetch[1] = shared_of(group.down);
    }
  }
  p.token_tiles = form.tiles;
  p.interleave_token_blocks = form.interleave_token_blocks;
  p.row_tiles = form.row_tiles;
  p.out = s.inner;
  p.out_stride = call.inner_stride();
  p.epilogue = Epilogue::silu_mul;
  return form.prefill ? run_prefill_gemm(p, call.rows_max(), form.columns, device_.multiprocessors)
                      : run_grouped_decode_gemm(p);
}

Status CudaBackend::multiply_down(const GroupCall& call,
                                  const GroupForm& form,
                                  const GroupScratch& s) {
  const TiledWeights& down = call.group.down;
  const std::int64_t stride = call.inner_stride();
  Gemm d = down.parameters();
  call.set_work(d, s);
  // The list is older than the kernel before, which quantises; without that one it need not be.
  d.token_blocks_early = down.type != TileType::bf16;
  d.token_tiles = form.tiles;
  d.row_tiles = d.type == TileType::fp8 ? form.row_tiles : 1;
  d.out = s.y;
  d.out_stride = down.rows;
  const bool quantises = !call.single() && !form.prefill &&
                         takes_experts_down(d, down.columns, call.count, form.tiles, wgmma_);
  if (down.type == TileType::bf16 || quantises) {
    d.x = reinterpret_cast<const std::uint8_t*>(s.inner);
    d.x_stride_bytes = 2 * stride;
    d.x_bytes = static_cast<int>(2 * down.columns);
  } else {
    KOHO_CUDA_TRY(launch_quantize_rows(s.inner_forms,
                                       {.x = s.inner,
                                        .stride = stride,
                                        .rows = call.rows_max(),
                                        .rows_count = call.single() ? nullptr : s.row_count,
                                        .width = down.columns,
                                        .multiprocessors = device_.multiprocessors},
                                       stream_));
    const bool block = down.type == TileType::fp8_block;
    d.x = block ? s.inner_forms.block_quantized : s.inner_forms.quantized;
    d.x_stride_bytes = stride;
    d.x_bytes = static_cast<int>(down.columns);
    d.x_scales = block ? s.inner_forms.block_scales : s.inner_forms.scales;
    d.x_scales_stride = s.inner_forms.block_scales_stride;
  }
  if (!quantises)
    return form.prefill
               ? run_prefill_gemm(d, call.rows_max(), form.columns, device_.multiprocessors)
               : run_grouped_decode_gemm(d);
  KOHO_CUDA_TRY(wgmma_ ? launch_experts_down_wgmma(d, device_.multiprocessors, stream_)
                       : launch_experts_down_portable(d, device_.multiprocessors, stream_));
  return {};
}

Result<GroupRows> CudaBackend::run_group(const GroupCall& call, std::byte*& scratch_at) {
  ScratchAllocator scratch_memory(scratch_at);
  const GroupScratch s(scratch_memory, call.tokens, call.top_k(), call.count, call.group);
  scratch_at += scratch_memory.used();
  const GroupForm form = form_of_group(call);
  if (!call.single()) KOHO_TRY(plan_group(call, form, s));
  KOHO_TRY(multiply_gate_up(call, form, s));
  KOHO_TRY(multiply_down(call, form, s));
  return GroupRows{s.y, call.single() ? nullptr : s.permuted_row};
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

Status CudaBackend::align_rows(Activation& x, const TiledWeights& matrix, std::byte*& scratch_at) {
  TensorView& rows = matrix.type == TileType::bf16  ? x.values
                     : matrix.type == TileType::fp8 ? x.quantized
                                                    : x.block_quantized;
  Gemm p;
  set_x(p, form_of(x, matrix.type));
  if (copies_aligned(p)) return {};
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
      combine.first_row = placed.shared_in_routed ? 1 : 0;
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
  KOHO_CUDA_TRY(launch_expert_combine(combine, stream_));
  return {};
}

}  // namespace koho::cuda
