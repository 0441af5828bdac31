// SPDX-License-Identifier: Apache-2.0
// The attention operator: which kernels take a step's rows, and the memory between them.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/views.h"

namespace koho::cuda {

/// Which kernels, and by which way their results go.
struct AttentionWay {
  bool fast = false;    // on tensor cores
  bool wgmma = false;   // and rows that are not decoded on Hopper's
  bool mixed = false;   // all rows' values meet in bf16 before they take the forms wanted
  bool direct = false;  // where the reader wants them
};

namespace {

/// The rows' values, or decoded rows' in the forms wanted.
cudaError_t attend(const Attention& p, const AttentionWay& way, cudaStream_t stream) {
  if (!way.fast) return launch_attention_plain(p, stream);
  if (p.decodes > 0)
    if (const cudaError_t status = launch_attention_decode(p, stream); status != cudaSuccess)
      return status;
  if (p.sequences == p.decodes) return cudaSuccess;
  return way.wgmma ? launch_attention_wgmma(p, stream) : launch_attention_prefill(p, stream);
}

/// Decoded rows and padding join the others' values.
cudaError_t join_rows(const Attention& p, const AttentionWay& way, cudaStream_t stream) {
  if (!way.fast) return cudaSuccess;
  RowForms values;
  values.values = p.out;
  values.values_stride = static_cast<std::int64_t>(p.query_heads) * p.width;
  if (p.decodes > 0)
    if (const cudaError_t status = launch_attention_merge(values, p, p.decodes, stream);
        status != cudaSuccess)
      return status;
  return way.wgmma ? cudaSuccess : launch_attention_padding(p, stream);
}

}  // namespace

Attention CudaBackend::attention_of(ConstTensorView q,
                                    const KvLayer& kv,
                                    const Batch& batch,
                                    const HeadShape& heads) const {
  const bool codes = kv.k.dtype == DType::f8_e4m3;
  return {.q = bf16(q),
          .k = kv.k.data,
          .v = kv.v.data,
          .k_scales = codes ? kv.k_scales.as<const float>() : nullptr,
          .v_scales = codes ? kv.v_scales.as<const float>() : nullptr,
          .pages = kv.k.size(0),
          .positions = i32(batch.positions),
          .query_starts = i32(batch.query_starts),
          .context_lengths = i32(batch.context_lengths),
          .page_tables = i32(batch.page_tables),
          .page_tables_stride = batch.page_tables.stride(0),
          .tokens = batch.tokens,
          .sequences = static_cast<int>(batch.sequences),
          // Deterministic: decoded rows take the way of a prompt's.
          .decodes = options_.deterministic ? 0 : static_cast<int>(batch.decodes),
          .singles = options_.deterministic ? static_cast<int>(batch.decodes) : 0,
          .query_max = static_cast<int>(batch.query_max),
          .context_max = static_cast<int>(batch.context_max),
          .query_heads = static_cast<int>(heads.query_heads),
          .kv_heads = static_cast<int>(heads.kv_heads),
          .width = static_cast<int>(heads.width),
          .group_tokens = static_cast<int>(group_tokens_),
          .tickets = tickets_.as<std::uint32_t>(),
          .multiprocessors = device_.multiprocessors};
}

Status CudaBackend::give_memory(Attention& p, const AttentionWay& way, Bf16* out) {
  // The rows' values, unless the reader wants them where they can be written at once; then the
  // parts; then pages widened, as many as what is reserved has room for.
  const std::int64_t values_bytes =
      way.mixed && !way.direct
          ? round_up<std::int64_t>(p.tokens * p.query_heads * p.width * 2, kScratchAlignment)
          : 0;
  const std::int64_t partial =
      way.fast ? attention_partial_floats({.decodes = p.decodes,
                                           .context_max = std::max(p.context_max, 1),
                                           .group_tokens = p.group_tokens,
                                           .query_heads = p.query_heads,
                                           .kv_heads = p.kv_heads,
                                           .width = p.width})
               : 0;
  const std::int64_t needed = values_bytes + round_up(partial * 4, kScratchAlignment);
  if (wgmma_attention_) {
    p.tile_order = tile_orders_.of(attention_prompt_tiles(p));
    p.widened_bytes = attention_widened_bytes(p, kWidenedBytesMax);
  }
  if (reserved_)
    p.widened_bytes =
        std::min(p.widened_bytes, std::max<std::int64_t>(scratch_.bytes() - needed, 0));
  KOHO_TRY_ASSIGN(std::byte * memory, scratch(needed + p.widened_bytes));
  p.out = way.direct ? out : reinterpret_cast<Bf16*>(memory);
  p.partial = reinterpret_cast<float*>(memory + values_bytes);
  p.widened = memory + needed;
  return {};
}

Status CudaBackend::do_attention(const Activation& out,
                                 ConstTensorView q,
                                 const KvLayer& kv,
                                 const Batch& batch,
                                 const HeadShape& heads) {
  KOHO_TRY(bind());
  Attention p = attention_of(q, kv, batch, heads);
  RowForms forms = forms_of(out);
  const std::int64_t width = heads.query_heads * heads.width;
  AttentionWay way;
  way.fast = attention_has_fast_form(p);
  way.wgmma = wgmma_attention_ && attention_has_wgmma_form(p) && p.sequences > p.decodes;
  way.mixed = p.sequences > p.decodes || !way.fast || !attention_merge_takes(forms, width);
  way.direct = !out.values.empty() && out.values.packed() &&
               reinterpret_cast<std::uintptr_t>(out.values.data) % 16 == 0;
  KOHO_TRY(give_memory(p, way, forms.values));
  KOHO_CUDA_TRY(attend(p, way, stream_));
  if (!way.mixed) {
    KOHO_CUDA_TRY(launch_attention_merge(forms, p, p.tokens, stream_));
    return {};
  }
  KOHO_CUDA_TRY(join_rows(p, way, stream_));
  if (way.direct) forms.values = nullptr;
  if (forms.values != nullptr || forms.codes != nullptr || forms.block_codes != nullptr)
    KOHO_CUDA_TRY(launch_quantise_rows(forms,
                                       {.x = p.out,
                                        .stride = width,
                                        .rows = p.tokens,
                                        .width = width,
                                        .multiprocessors = device_.multiprocessors},
                                       stream_));
  return {};
}

}  // namespace koho::cuda
