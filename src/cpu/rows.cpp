// SPDX-License-Identifier: Apache-2.0
// The operators that take one row at a time: embedding, norms, quantisation, RoPE and storing
// of k and v, SiLU, page copies, sampling.
#include <algorithm>
#include <cstring>

#include "cpu/cpu_backend_impl.h"
#include "sampling/philox.h"

namespace koho::cpu {
namespace {

constexpr float kScaleLeast = 1.0F / (kE4M3Max * 512.0F);

template <typename T>
auto row_of(const auto& view, std::int64_t row) {
  return view.template as<T>() + row * view.stride(0);
}

}  // namespace

Status CpuBackend::do_gather_input_ids(const BatchSlotRows& rows,
                                       ConstTensorView given_ids,
                                       ConstTensorView batch_slots,
                                       const BatchSlotTables& tables) {
  const auto has_ended = [&](std::int32_t batch_slot) {
    KOHO_CHECK(batch_slot >= 0 && batch_slot < tables.outputs.size(0));
    return row_of<std::int32_t>(tables.outputs, batch_slot)[OutputRecord::kEnded] != 0;
  };
  for (std::int64_t t = 0; t < given_ids.size(0); ++t) {
    const std::int32_t given = given_ids.as<std::int32_t>()[t];
    std::int32_t& id = rows.token_ids.as<std::int32_t>()[t];
    if (given >= 0) {
      id = given;
      continue;
    }
    const std::int32_t batch_slot = -1 - given;
    if (has_ended(batch_slot)) rows.slots.as<std::int64_t>()[t] = -1;
    id = tables.last_sampled.as<std::int32_t>()[batch_slot];
  }
  for (std::int64_t s = 0; s < batch_slots.size(0); ++s) {
    const std::int32_t batch_slot = batch_slots.as<std::int32_t>()[s];
    std::int32_t& context = rows.context_lengths.as<std::int32_t>()[s];
    if (has_ended(batch_slot)) context = 0;
    const std::int64_t pages = ceil_div<std::int64_t>(context, kPageTokens);
    KOHO_CHECK(pages <= rows.page_tables.size(1));
    std::copy_n(row_of<std::int32_t>(tables.pages, batch_slot), pages,
                row_of<std::int32_t>(rows.page_tables, s));
  }
  return {};
}

Status CpuBackend::do_commit_sampled(TensorView ends,
                                     const BatchSlotTables& tables,
                                     ConstTensorView batch_slots,
                                     ConstTensorView ids) {
  for (std::int64_t r = 0; r < ids.size(0); ++r) {
    const std::int32_t batch_slot = batch_slots.as<std::int32_t>()[r];
    if (batch_slot < 0) continue;
    KOHO_CHECK_LT(batch_slot, tables.outputs.size(0));
    const std::int32_t id = ids.as<std::int32_t>()[r];
    const RowEnd end = take_token(row_of<std::int32_t>(tables.outputs, batch_slot), id);
    if (end != RowEnd::frozen) tables.last_sampled.as<std::int32_t>()[batch_slot] = std::max(id, 0);
    ends.as<std::uint8_t>()[r] = static_cast<std::uint8_t>(end);
  }
  return {};
}

Status CpuBackend::do_set_entries(TensorView table, ConstTensorView pairs) {
  const std::int32_t* pair = pairs.as<std::int32_t>();
  for (std::int64_t i = 0; i < pairs.size(0); ++i, pair += 2) {
    KOHO_CHECK(pair[0] >= 0 && pair[0] < table.size(0));
    table.as<std::int32_t>()[pair[0]] = pair[1];
  }
  return {};
}

Status CpuBackend::do_embed(TensorView out, ConstTensorView ids, ConstTensorView table) {
  return do_gather_rows(out, table, ids);
}

Status CpuBackend::do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) {
  const auto bytes = static_cast<std::size_t>(x.size(1) * dtype_bytes(x.dtype));
  const std::int32_t* indices = rows.as<std::int32_t>();
  for_rows(out.size(0), [&](std::int64_t row, int) {
    KOHO_CHECK(indices[row] >= 0 && indices[row] < x.size(0));
    std::memcpy(row_of<BFloat16>(out, row), row_of<BFloat16>(x, indices[row]), bytes);
  });
  return {};
}

void CpuBackend::write_activation(const Activation& out, std::int64_t row, const BFloat16* values) {
  if (!out.values.empty()) {
    BFloat16* target = row_of<BFloat16>(out.values, row);
    if (target != values) std::copy_n(values, out.values.size(1), target);
  }
  if (!out.quantized.empty())
    out.scales.as<float>()[row] = kernels_.quantize_row(row_of<Float8E4M3>(out.quantized, row),
                                                        values, out.quantized.size(1), kScaleLeast);
  if (!out.block_quantized.empty()) {
    const std::int64_t columns = out.block_quantized.size(1);
    for (std::int64_t first = 0; first < columns; first += kQuantBlock)
      row_of<float>(out.block_scales, row)[first / kQuantBlock] = kernels_.quantize_row(
          row_of<Float8E4M3>(out.block_quantized, row) + first, values + first,
          std::min(kQuantBlock, columns - first), kScaleLeast);
  }
}

Status CpuBackend::do_rms_norm(const Activation& out,
                               ConstTensorView x,
                               ConstTensorView weight,
                               float eps) {
  const std::int64_t width = x.size(1);
  KOHO_TRY(ensure_worker_scratch(width));
  for_rows(x.size(0), [&](std::int64_t row, int worker) {
    BFloat16* normed = out.values.empty() ? row_scratch(worker) : row_of<BFloat16>(out.values, row);
    kernels_.norm_row(normed, row_of<BFloat16>(x, row), weight.as<BFloat16>(), width, eps);
    write_activation(out, row, normed);
  });
  return {};
}

Status CpuBackend::do_add_rms_norm(const Activation& out,
                                   TensorView residual,
                                   ConstTensorView block_output,
                                   ConstTensorView weight,
                                   float eps) {
  const std::int64_t width = residual.size(1);
  KOHO_TRY(ensure_worker_scratch(width));
  for_rows(residual.size(0), [&](std::int64_t row, int worker) {
    BFloat16* sum = row_of<BFloat16>(residual, row);
    BFloat16* normed = out.values.empty() ? row_scratch(worker) : row_of<BFloat16>(out.values, row);
    kernels_.add_row(sum, row_of<BFloat16>(block_output, row), width);
    kernels_.norm_row(normed, sum, weight.as<BFloat16>(), width, eps);
    write_activation(out, row, normed);
  });
  return {};
}

Status CpuBackend::do_silu_mul(const Activation& out, ConstTensorView gate_up) {
  const std::int64_t width = gate_up.size(1) / 2;
  KOHO_TRY(ensure_worker_scratch(width));
  for_rows(gate_up.size(0), [&](std::int64_t row, int worker) {
    const BFloat16* gate = row_of<BFloat16>(gate_up, row);
    BFloat16* product =
        out.values.empty() ? row_scratch(worker) : row_of<BFloat16>(out.values, row);
    kernels_.silu_mul_row(product, gate, gate + width, width);
    write_activation(out, row, product);
  });
  return {};
}

namespace {

/// Where one head of one token lies in the cache.
struct CacheRow {
  std::int64_t element = 0;  // of its first dim
  std::int64_t scale = 0;    // of its scale
};

CacheRow cache_row(const KvLayer& kv, std::int64_t slot, std::int64_t head) {
  const std::int64_t page = slot / kPageTokens;
  const std::int64_t row = (page * kv.k.size(1) + head) * kPageTokens + slot % kPageTokens;
  return {row * kv.k.size(3), row};
}

}  // namespace

Status CpuBackend::do_qk_norm_rope_store_kv(const Queries& q,
                                            const KvLayer& kv,
                                            const Activation& qkv,
                                            ConstTensorView positions,
                                            ConstTensorView slots,
                                            const QkNormRope& weights) {
  const HeadShape& heads = weights.heads;
  const std::int64_t width = heads.width;
  const std::int64_t half = heads.rotary / 2;
  const float* table = weights.rope_table.as<float>();
  const bool quantized = !qkv.quantized.empty();
  KOHO_TRY(ensure_worker_scratch(width));
  // A head's bf16 values: where they lie, or in `scratch`.
  const auto head_of = [&](std::int64_t t, std::int64_t head, BFloat16* scratch) {
    if (!quantized) return row_of<const BFloat16>(qkv.values, t) + head * width;
    const Float8E4M3* values = row_of<Float8E4M3>(qkv.quantized, t) + head * width;
    const float scale = qkv.scales.as<float>()[t];
    for (std::int64_t i = 0; i < width; ++i) scratch[i] = to_bf16(to_float(values[i]) * scale);
    return static_cast<const BFloat16*>(scratch);
  };
  // `out` may be `in`.
  const auto turn = [&](BFloat16* out, const BFloat16* in, const ConstTensorView& norm,
                        const float* angles) {
    if (!norm.empty())
      kernels_.norm_row(out, in, norm.as<BFloat16>(), width, weights.eps);
    else if (out != in)
      std::copy_n(in, width, out);
    kernels_.rotate_row(out, angles, angles + half, heads.rotary);
  };
  const auto store = [&](const TensorView& pages, const TensorView& scales, CacheRow at,
                         const BFloat16* row) {
    if (pages.dtype == DType::bf16)
      std::copy_n(row, width, pages.as<BFloat16>() + at.element);
    else
      scales.as<float>()[at.scale] =
          kernels_.quantize_row(pages.as<Float8E4M3>() + at.element, row, width, 0.0F);
  };
  for_rows(positions.size(0), [&](std::int64_t t, int worker) {
    const std::int64_t position = positions.as<std::int32_t>()[t];
    KOHO_CHECK(position >= 0 && position < weights.rope_table.size(0));
    const float* angles = table + position * heads.rotary;
    BFloat16* scratch = row_scratch(worker);
    for (std::int64_t head = 0; head < heads.query_heads; ++head) {
      const std::int64_t at = t * heads.query_heads + head;
      BFloat16* query = quantized ? scratch : q.values.as<BFloat16>() + at * width;
      turn(query, head_of(t, head, scratch), weights.q_norm, angles);
      if (quantized) store(q.quantized, q.scales, {at * width, at}, query);
    }
    const std::int64_t slot = slots.as<std::int64_t>()[t];
    if (slot < 0) return;
    KOHO_CHECK(slot < kv.k.size(0) * kPageTokens);
    for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
      const CacheRow at = cache_row(kv, slot, head);
      const std::int64_t k_head = heads.query_heads + head;
      turn(scratch, head_of(t, k_head, scratch), weights.k_norm, angles);
      store(kv.k, kv.k_scales, at, scratch);
      store(kv.v, kv.v_scales, at, head_of(t, k_head + heads.kv_heads, scratch));
    }
  });
  return {};
}

Status CpuBackend::do_copy_pages(const KvLayer& kv, ConstTensorView pairs) {
  const std::int32_t* pages = pairs.as<std::int32_t>();
  const auto copy = [&](const TensorView& cache, std::int64_t pair) {
    if (cache.empty()) return;
    const std::int64_t from = pages[2 * pair];
    const std::int64_t to = pages[2 * pair + 1];
    KOHO_CHECK(from >= 0 && from < cache.size(0) && to >= 0 && to < cache.size(0));
    const std::int64_t bytes = cache.stride(0) * dtype_bytes(cache.dtype);
    std::memmove(cache.data + to * bytes, cache.data + from * bytes,
                 static_cast<std::size_t>(bytes));
  };
  for (std::int64_t pair = 0; pair < pairs.size(0); ++pair) {
    copy(kv.k, pair);
    copy(kv.v, pair);
    copy(kv.k_scales, pair);
    copy(kv.v_scales, pair);
  }
  return {};
}

static void set_nonzero(std::uint32_t* nonzero, std::int32_t token) {
  nonzero[race_bitmap_word(token)] |= race_bitmap_bit(token);
}

Status CpuBackend::do_sample(const SamplingOutput& out,
                             ConstTensorView logits,
                             const SamplingBatch& batch) {
  const auto vocabulary = static_cast<std::size_t>(logits.size(1));
  const auto mask_words = (vocabulary + 31) / 32;
  while (static_cast<int>(samplers_.size()) < pool_.threads()) {
    samplers_.emplace_back(logits.size(1));
    samples_.emplace_back();
  }
  pool_.run(logits.size(0), [&](std::int64_t r, int worker) {
    const SamplingRow& row = reinterpret_cast<const SamplingRow*>(batch.rows.data)[r];
    SamplerInput input;
    input.logits = {row_of<float>(logits, r), vocabulary};
    input.tokens = batch.tokens;
    if (row.bias_count > 0)
      input.biases = {reinterpret_cast<const LogitBias*>(batch.biases.data) + row.bias_begin,
                      static_cast<std::size_t>(row.bias_count)};
    if (row.mask_row >= 0)
      input.mask = {row_of<std::int32_t>(batch.masks, row.mask_row), mask_words};
    if (row.counts_slot >= 0)
      input.counts = {row_of<std::int32_t>(batch.counts.entries, row.counts_slot), vocabulary};
    SamplerOutput& sample = samples_[static_cast<std::size_t>(worker)];
    samplers_[static_cast<std::size_t>(worker)].sample(row, input, sample);
    out.ids.as<std::int32_t>()[r] = sample.id;
    if (row.counts_slot >= 0 && sample.id >= 0)
      set_nonzero(row_of<std::uint32_t>(batch.counts.nonzero, row.counts_slot), sample.id);
    if (!out.logprobs.empty()) out.logprobs.as<float>()[r] = sample.logprob;
    if (out.top_ids.empty()) return;
    std::copy(sample.top_ids.begin(), sample.top_ids.end(), row_of<std::int32_t>(out.top_ids, r));
    std::copy(sample.top_logprobs.begin(), sample.top_logprobs.end(),
              row_of<float>(out.top_logprobs, r));
  });
  return {};
}

Status CpuBackend::do_reset_counts(const TokenCounts& counts,
                                   std::int64_t slot,
                                   ConstTensorView prompt_ids,
                                   ConstTensorView output_ids) {
  constexpr auto kPromptBit = static_cast<std::int32_t>(0x80000000U);
  std::int32_t* row = row_of<std::int32_t>(counts.entries, slot);
  auto* nonzero = row_of<std::uint32_t>(counts.nonzero, slot);
  const std::int64_t vocabulary = counts.entries.size(1);
  std::fill_n(row, vocabulary, 0);
  std::fill_n(nonzero, counts.nonzero.size(1), 0U);
  const auto entry = [&](std::int32_t id) -> std::int32_t& {
    KOHO_CHECK(id >= 0 && id < vocabulary);
    set_nonzero(nonzero, id);
    return row[id];
  };
  for (std::int64_t i = 0; i < prompt_ids.size(0); ++i)
    entry(prompt_ids.as<std::int32_t>()[i]) |= kPromptBit;
  for (std::int64_t i = 0; i < output_ids.size(0); ++i) ++entry(output_ids.as<std::int32_t>()[i]);
  return {};
}

Status CpuBackend::do_count_sampled(const TokenCounts& counts,
                                    ConstTensorView rows,
                                    ConstTensorView ids) {
  for (std::int64_t r = 0; r < ids.size(0); ++r) {
    const std::int32_t slot = reinterpret_cast<const SamplingRow*>(rows.data)[r].counts_slot;
    const std::int32_t id = ids.as<std::int32_t>()[r];
    if (slot < 0 || id < 0) continue;
    KOHO_CHECK(slot < counts.entries.size(0) && id < counts.entries.size(1));
    ++row_of<std::int32_t>(counts.entries, slot)[id];
    set_nonzero(row_of<std::uint32_t>(counts.nonzero, slot), id);
  }
  return {};
}

}  // namespace koho::cpu
