// SPDX-License-Identifier: Apache-2.0
// The attention operator: chooses the kernels for a step's rows and gives them scratch memory.
// docs/kernels/attention.md has the same choice as a table.
#include <algorithm>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/views.h"

namespace koho::cuda {

/// The kernels of one call, and by which way their results reach the outputs.
struct AttentionPath {
  bool mma = false;     // tensor cores: else attention_reference.cu
  bool wgmma = false;   // prompts by attention_wgmma.cu: else attention_prefill.cu
  bool mixed = false;   // attention_combine cannot write all outputs: rows are bf16 first, then
                        // launch_quantize_rows() makes FP8 of them
  bool direct = false;  // there is an aligned bf16 output: the kernels write it, not scratch memory
};

namespace {

/// Launches attention for all rows. Decode rows are left to launch_attention_combine().
cudaError_t attend(const Attention& p, const AttentionPath& path, cudaStream_t stream) {
  if (!path.mma) return launch_attention_reference(p, stream);
  if (p.decodes > 0)
    if (const cudaError_t status = launch_attention_decode(p, stream); status != cudaSuccess)
      return status;
  if (p.sequences == p.decodes) return cudaSuccess;
  return path.wgmma ? launch_attention_wgmma(p, stream) : launch_attention_prefill(p, stream);
}

/// Combines decode rows to bf16 beside the others', and zeroes rows that no sequence owns.
cudaError_t combine_decode_rows(const Attention& p,
                                const AttentionPath& path,
                                cudaStream_t stream) {
  if (!path.mma) return cudaSuccess;
  RowOutputs values;
  values.values = p.out;
  values.values_stride = static_cast<std::int64_t>(p.query_heads) * p.width;
  if (p.decodes > 0)
    if (const cudaError_t status = launch_attention_combine(values, p, p.decodes, stream);
        status != cudaSuccess)
      return status;
  return path.wgmma ? cudaSuccess : launch_attention_padding(p, stream);
}

}  // namespace

Attention CudaBackend::attention_of(ConstTensorView q,
                                    const KvLayer& kv,
                                    const Batch& batch,
                                    const HeadShape& heads) const {
  const bool fp8_pages = kv.k.dtype == DType::f8_e4m3;
  return {.q = bf16(q),
          .k = kv.k.data,
          .v = kv.v.data,
          .k_scales = fp8_pages ? kv.k_scales.as<const float>() : nullptr,
          .v_scales = fp8_pages ? kv.v_scales.as<const float>() : nullptr,
          .pages = kv.k.size(0),
          .positions = i32(batch.positions),
          .query_starts = i32(batch.query_starts),
          .context_lengths = i32(batch.context_lengths),
          .page_tables = i32(batch.page_tables),
          .page_tables_stride = batch.page_tables.stride(0),
          .tokens = batch.tokens,
          .sequences = static_cast<int>(batch.sequences),
          .decodes = static_cast<int>(batch.decodes),
          .query_max = static_cast<int>(batch.query_max),
          .context_max = static_cast<int>(batch.context_max),
          .query_heads = static_cast<int>(heads.query_heads),
          .kv_heads = static_cast<int>(heads.kv_heads),
          .width = static_cast<int>(heads.width),
          .chunk_tokens = static_cast<int>(chunk_tokens_),
          .tile_counters = tile_counters_.as<std::uint32_t>(),
          .multiprocessors = device_.multiprocessors};
}

Status CudaBackend::give_memory(Attention& p, const AttentionPath& path, Bf16* out) {
  // In this order: the rows in bf16, unless they go straight to the output; the partial sums of
  // decode; e4m3 pages upcast to f16, as many as the reserved memory has room for.
  const std::int64_t values_bytes =
      path.direct
          ? 0
          : round_up<std::int64_t>(p.tokens * p.query_heads * p.width * 2, kScratchAlignment);
  const std::int64_t partial =
      path.mma ? attention_partial_floats({.decodes = p.decodes,
                                           .context_max = std::max(p.context_max, 1),
                                           .chunk_tokens = p.chunk_tokens,
                                           .query_heads = p.query_heads,
                                           .kv_heads = p.kv_heads,
                                           .width = p.width})
               : 0;
  const std::int64_t needed = values_bytes + round_up(partial * 4, kScratchAlignment);
  if (wgmma_attention_) {
    p.tile_order = tile_orders_.of(attention_prompt_tiles(p));
    p.upcast_bytes = attention_upcast_bytes(p, kUpcastBytesMax);
  }
  if (reserved_)
    p.upcast_bytes = std::min(p.upcast_bytes, std::max<std::int64_t>(scratch_.bytes() - needed, 0));
  KOHO_TRY_ASSIGN(std::byte * memory, scratch(needed + p.upcast_bytes));
  p.out = path.direct ? out : reinterpret_cast<Bf16*>(memory);
  p.partial = reinterpret_cast<float*>(memory + values_bytes);
  p.upcast = memory + needed;
  return {};
}

Status CudaBackend::do_attention(const Activation& out,
                                 ConstTensorView q,
                                 const KvLayer& kv,
                                 const Batch& batch,
                                 const HeadShape& heads) {
  KOHO_TRY(bind());
  Attention p = attention_of(q, kv, batch, heads);
  RowOutputs outputs = row_outputs_of(out);
  const std::int64_t width = heads.query_heads * heads.width;
  AttentionPath path;
  path.mma = attention_supports_mma(p);
  path.wgmma = wgmma_attention_ && attention_supports_wgmma(p) && p.sequences > p.decodes;
  path.mixed = p.sequences > p.decodes || !path.mma || !attention_combine_supports(outputs, width);
  path.direct = !out.values.empty() && out.values.packed() &&
                reinterpret_cast<std::uintptr_t>(out.values.data) % 16 == 0;
  KOHO_TRY(give_memory(p, path, outputs.values));
  KOHO_CUDA_TRY(attend(p, path, stream_));
  if (!path.mixed) {
    KOHO_CUDA_TRY(launch_attention_combine(outputs, p, p.tokens, stream_));
    return {};
  }
  KOHO_CUDA_TRY(combine_decode_rows(p, path, stream_));
  if (path.direct) outputs.values = nullptr;
  if (outputs.values != nullptr || outputs.quantized != nullptr ||
      outputs.block_quantized != nullptr)
    KOHO_CUDA_TRY(launch_quantize_rows(outputs,
                                       {.x = p.out,
                                        .stride = width,
                                        .rows = p.tokens,
                                        .width = width,
                                        .multiprocessors = device_.multiprocessors},
                                       stream_));
  return {};
}

}  // namespace koho::cuda
