// SPDX-License-Identifier: Apache-2.0
// The public half of every operator: it checks the contract, opens the trace span and calls the
// backend's virtual.
#include "ops/backend.h"

#include <array>

#include "base/arithmetic.h"
#include "ops/contract.h"
#include "sampling/output_record.h"
#include "sampling/philox.h"

namespace koho {
namespace {

constexpr auto kRows = Contract::Layout::rows;

/// The shape of one source and of its scale, as LinearSource says.
Status check_source(const Contract& contract, std::string_view name, const LinearSource& source) {
  const ConstTensorView& weight = source.weight;
  KOHO_TRY(contract.that(weight.shape.rank() == 2 && !weight.empty(),
                         std::string(name) + " must be [N, K]"));
  const std::int64_t rows = weight.size(0);
  const std::int64_t columns = weight.size(1);
  const DType dtype = source.quant == WeightQuant::none ? DType::bf16 : DType::f8_e4m3;
  KOHO_TRY(contract.that(weight.dtype == dtype && weight.rows_packed(),
                         std::string(name) + " must be " + std::string(dtype_name(dtype)) +
                             " with packed rows, found " + describe(weight)));
  Shape scale;
  switch (source.quant) {
    case WeightQuant::none:
      break;
    case WeightQuant::fp8_channel:
      scale = {rows};
      break;
    case WeightQuant::fp8_tensor:
      scale = {1};
      break;
    case WeightQuant::fp8_block:
      scale = {ceil_div(rows, kQuantBlock), ceil_div(columns, kQuantBlock)};
      break;
  }
  if (source.quant != WeightQuant::none) {
    const bool known = source.scale.dtype == DType::f32 || source.scale.dtype == DType::bf16;
    KOHO_TRY(contract.that(!source.scale.empty() && known && source.scale.shape == scale,
                           std::string(name) + "'s scale must be F32 or BF16 " + to_string(scale) +
                               ", found " + describe(source.scale)));
  }
  if (source.bias.empty()) return {};
  return contract.that(
      source.bias.dtype == DType::bf16 && source.bias.shape == Shape({rows}),
      std::string(name) + "'s bias must be BF16 [N], found " + describe(source.bias));
}

Status check_mlp(const Contract& contract,
                 std::string_view name,
                 const MlpSource& mlp,
                 std::int64_t hidden,
                 std::int64_t ffn) {
  KOHO_TRY(check_source(contract, std::string(name) + ".gate", mlp.gate));
  KOHO_TRY(check_source(contract, std::string(name) + ".up", mlp.up));
  KOHO_TRY(check_source(contract, std::string(name) + ".down", mlp.down));
  return contract.that(
      mlp.gate.weight.shape == Shape({ffn, hidden}) &&
          mlp.up.weight.shape == Shape({ffn, hidden}) &&
          mlp.down.weight.shape == Shape({hidden, ffn}),
      std::string(name) + ": gate and up must be [F, H], down [H, F], alike in all experts");
}

/// Tables of as many batch slots each.
Status check_tables(const Contract& contract, const BatchSlotTables& tables, std::int64_t width) {
  const std::int64_t batch_slots = tables.pages.size(0);
  KOHO_TRY(contract.tensor("pages", tables.pages, DType::i32, {batch_slots, width}));
  KOHO_TRY(contract.tensor("last_sampled", tables.last_sampled, DType::i32, {batch_slots}));
  return contract.tensor("outputs", tables.outputs, DType::i32,
                         {batch_slots, OutputRecord::kWords});
}

}  // namespace

Result<Linear> Backend::place_linear(std::span<const LinearSource> blocks) {
  const Contract contract("place_linear", device());
  KOHO_TRY(contract.that(!blocks.empty(), "at least one block"));
  for (const LinearSource& block : blocks) {
    KOHO_TRY(check_source(contract, "block", block));
    KOHO_TRY(contract.that(block.in_features() == blocks[0].in_features(),
                           "blocks must have one width"));
  }
  return do_place_linear(blocks);
}

Result<Experts> Backend::place_experts(const ExpertsSource& source) {
  const Contract contract("place_experts", device());
  KOHO_TRY(
      contract.that(!source.experts.empty() || source.shared.has_value(), "at least one expert"));
  const MlpSource& model = source.experts.empty() ? *source.shared : source.experts[0];
  const std::int64_t hidden = model.gate.in_features();
  for (const MlpSource& expert : source.experts)
    KOHO_TRY(check_mlp(contract, "expert", expert, hidden, model.gate.out_features()));
  if (source.shared)
    KOHO_TRY(check_mlp(contract, "shared expert", *source.shared, hidden,
                       source.shared->gate.out_features()));
  return do_place_experts(source);
}

Status Backend::gather_input_ids(const BatchSlotRows& rows,
                                 ConstTensorView given_ids,
                                 ConstTensorView own_batch_slots,
                                 const BatchSlotTables& tables) {
  const Contract contract("gather_input_ids", device());
  KOHO_TRY(contract.that(given_ids.shape.rank() == 1 && rows.page_tables.shape.rank() == 2 &&
                             tables.pages.shape.rank() == 2,
                         "given_ids [T] · page_tables [S, W] · pages [batch_slots, W]"));
  const std::int64_t tokens = given_ids.size(0);
  const std::int64_t sequences = rows.page_tables.size(0);
  const std::int64_t width = rows.page_tables.size(1);
  KOHO_TRY(contract.tensor("token_ids", rows.token_ids, DType::i32, {tokens}));
  KOHO_TRY(contract.tensor("slots", rows.slots, DType::i64, {tokens}));
  KOHO_TRY(contract.tensor("page_tables", rows.page_tables, DType::i32, {sequences, width}));
  KOHO_TRY(contract.tensor("context_lengths", rows.context_lengths, DType::i32, {sequences}));
  KOHO_TRY(contract.tensor("given_ids", given_ids, DType::i32, {tokens}));
  KOHO_TRY(contract.tensor("batch_slots", own_batch_slots, DType::i32, {sequences}));
  KOHO_TRY(check_tables(contract, tables, width));
  if (tokens == 0 && sequences == 0) return {};
  if (trace_.skips(Op::gather_input_ids)) return {};
  const Trace::Span span(trace_, Op::gather_input_ids);
  return do_gather_input_ids(rows, given_ids, own_batch_slots, tables);
}

Status Backend::commit_sampled(TensorView ends,
                               const BatchSlotTables& tables,
                               ConstTensorView batch_slots,
                               ConstTensorView ids) {
  const Contract contract("commit_sampled", device());
  KOHO_TRY(contract.that(ids.shape.rank() == 1 && tables.pages.shape.rank() == 2,
                         "ids [R] · pages [batch_slots, W]"));
  KOHO_TRY(contract.tensor("ends", ends, DType::u8, {ids.size(0)}));
  KOHO_TRY(check_tables(contract, tables, tables.pages.size(1)));
  KOHO_TRY(contract.tensor("batch_slots", batch_slots, DType::i32, {ids.size(0)}));
  KOHO_TRY(contract.tensor("ids", ids, DType::i32, {ids.size(0)}));
  if (ids.size(0) == 0) return {};
  if (trace_.skips(Op::commit_sampled)) return {};
  const Trace::Span span(trace_, Op::commit_sampled);
  return do_commit_sampled(ends, tables, batch_slots, ids);
}

Status Backend::set_entries(TensorView table, ConstTensorView pairs) {
  const Contract contract("set_entries", device());
  KOHO_TRY(contract.that(table.shape.rank() == 1 && pairs.shape.rank() == 2,
                         "table [n] · pairs [C, 2]"));
  KOHO_TRY(contract.tensor("table", table, DType::i32, {table.size(0)}));
  KOHO_TRY(contract.tensor("pairs", pairs, DType::i32, {pairs.size(0), 2}));
  if (pairs.size(0) == 0) return {};
  if (trace_.skips(Op::set_entries)) return {};
  const Trace::Span span(trace_, Op::set_entries);
  return do_set_entries(table, pairs);
}

Status Backend::embed(TensorView out, ConstTensorView ids, ConstTensorView table) {
  const Contract contract("embed", device());
  KOHO_TRY(
      contract.that(out.shape.rank() == 2 && table.shape.rank() == 2, "out [T, H] · table [V, H]"));
  KOHO_TRY(contract.tensor("out", out, DType::bf16, {out.size(0), table.size(1)}));
  KOHO_TRY(contract.tensor("ids", ids, DType::i32, {out.size(0)}));
  KOHO_TRY(contract.tensor("table", table, DType::bf16, {table.size(0), table.size(1)}));
  if (out.size(0) == 0) return {};
  if (trace_.skips(Op::embed)) return {};
  const Trace::Span span(trace_, Op::embed);
  return do_embed(out, ids, table);
}

Status Backend::gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) {
  const Contract contract("gather_rows", device());
  KOHO_TRY(contract.that(out.shape.rank() == 2 && x.shape.rank() == 2, "out [R, H] · x [T, H]"));
  KOHO_TRY(contract.tensor("out", out, DType::bf16, {out.size(0), x.size(1)}));
  KOHO_TRY(contract.tensor("x", x, DType::bf16, {x.size(0), x.size(1)}, kRows));
  KOHO_TRY(contract.tensor("rows", rows, DType::i32, {out.size(0)}));
  if (out.size(0) == 0) return {};
  if (trace_.skips(Op::gather_rows)) return {};
  const Trace::Span span(trace_, Op::gather_rows);
  return do_gather_rows(out, x, rows);
}

Status Backend::rms_norm(const Activation& out,
                         ConstTensorView x,
                         ConstTensorView weight,
                         float eps) {
  const Contract contract("rms_norm", device());
  KOHO_TRY(contract.that(x.shape.rank() == 2, "x [T, H]"));
  KOHO_TRY(contract.tensor("x", x, DType::bf16, {x.size(0), x.size(1)}, kRows));
  KOHO_TRY(contract.tensor("weight", weight, DType::bf16, {x.size(1)}));
  KOHO_TRY(contract.activation("out", out, x.size(0), x.size(1)));
  if (x.size(0) == 0) return {};
  if (trace_.skips(Op::rms_norm)) return {};
  const Trace::Span span(trace_, Op::rms_norm);
  return do_rms_norm(out, x, weight, eps);
}

Status Backend::add_rms_norm(const Activation& out,
                             TensorView residual,
                             ConstTensorView block_output,
                             ConstTensorView weight,
                             float eps) {
  const Contract contract("add_rms_norm", device());
  KOHO_TRY(contract.that(residual.shape.rank() == 2, "residual [T, H]"));
  KOHO_TRY(
      contract.tensor("residual", residual, DType::bf16, {residual.size(0), residual.size(1)}));
  KOHO_TRY(contract.tensor("block_output", block_output, DType::bf16,
                           {residual.size(0), residual.size(1)}));
  KOHO_TRY(contract.tensor("weight", weight, DType::bf16, {residual.size(1)}));
  KOHO_TRY(contract.activation("out", out, residual.size(0), residual.size(1)));
  if (residual.size(0) == 0) return {};
  if (trace_.skips(Op::add_rms_norm)) return {};
  const Trace::Span span(trace_, Op::add_rms_norm);
  return do_add_rms_norm(out, residual, block_output, weight, eps);
}

Status Backend::linear(TensorView out, const Activation& x, const Linear& weight) {
  const Contract contract("linear", device());
  KOHO_TRY(contract.that(out.shape.rank() == 2 && weight.placed != nullptr,
                         "out [T, N] · a placed weight"));
  const DType dtype = out.dtype == DType::f32 ? DType::f32 : DType::bf16;
  KOHO_TRY(contract.tensor("out", out, dtype, {out.size(0), weight.out_features}, kRows));
  KOHO_TRY(contract.activation("x", x, out.size(0), weight.in_features, weight.needs));
  if (out.size(0) == 0) return {};
  if (trace_.skips(Op::linear, weight.out_features)) return {};
  const Trace::Span span(trace_, Op::linear);
  return do_linear(out, x, weight);
}

Status Backend::qk_norm_rope_store_kv(const Queries& q,
                                      const KvLayer& kv,
                                      const Activation& qkv,
                                      ConstTensorView positions,
                                      ConstTensorView slots,
                                      const QkNormRope& weights) {
  const Contract contract("qk_norm_rope_store_kv", device());
  const HeadShape& heads = weights.heads;
  KOHO_TRY(contract.that(positions.shape.rank() == 1, "positions [T]"));
  const std::int64_t tokens = positions.size(0);
  const std::int64_t columns = (heads.query_heads + 2 * heads.kv_heads) * heads.width;
  KOHO_TRY(contract.that(heads.rotary % 2 == 0 && heads.rotary <= heads.width,
                         "rotary is even and at most D"));
  KOHO_TRY(contract.activation("qkv", qkv, tokens, columns));
  KOHO_TRY(contract.optional("q.values", q.values, DType::bf16,
                             {tokens, heads.query_heads, heads.width}));
  KOHO_TRY(contract.optional("q.quantized", q.quantized, DType::f8_e4m3,
                             {tokens, heads.query_heads, heads.width}));
  if (!q.quantized.empty())
    KOHO_TRY(contract.tensor("q.scales", q.scales, DType::f32, {tokens, heads.query_heads}));
  KOHO_TRY(contract.tensor("positions", positions, DType::i32, {tokens}));
  KOHO_TRY(contract.tensor("slots", slots, DType::i64, {tokens}));
  KOHO_TRY(contract.kv(kv, heads.kv_heads, heads.width));
  KOHO_TRY(contract.optional("q_norm", weights.q_norm, DType::bf16, {heads.width}));
  KOHO_TRY(contract.optional("k_norm", weights.k_norm, DType::bf16, {heads.width}));
  KOHO_TRY(
      contract.that(weights.rope_table.shape.rank() == 3, "rope_table [positions, 2, rotary/2]"));
  KOHO_TRY(contract.tensor("rope_table", weights.rope_table, DType::f32,
                           {weights.rope_table.size(0), 2, heads.rotary / 2}));
  if (tokens == 0) return {};
  const bool quantized = !qkv.quantized.empty();
  KOHO_TRY(contract.that(qkv.values.empty() == quantized && qkv.block_quantized.empty() &&
                             q.values.empty() == quantized && q.quantized.empty() != quantized,
                         "q and qkv have one form, the same one: values, or quantised values"));
  if (trace_.skips(Op::qk_norm_rope_store_kv)) return {};
  const Trace::Span span(trace_, Op::qk_norm_rope_store_kv);
  return do_qk_norm_rope_store_kv(q, kv, qkv, positions, slots, weights);
}

Status Backend::attention(const Activation& out,
                          ConstTensorView q,
                          const KvLayer& kv,
                          const Batch& batch,
                          const HeadShape& heads) {
  const Contract contract("attention", device());
  KOHO_TRY(
      contract.that(heads.kv_heads > 0 && heads.query_heads % heads.kv_heads == 0, "K divides Q"));
  KOHO_TRY(contract.tensor("q", q, DType::bf16, {batch.tokens, heads.query_heads, heads.width}));
  KOHO_TRY(contract.activation("out", out, batch.tokens, heads.query_heads * heads.width));
  KOHO_TRY(contract.kv(kv, heads.kv_heads, heads.width));
  KOHO_TRY(contract.tensor("positions", batch.positions, DType::i32, {batch.tokens}));
  KOHO_TRY(contract.tensor("query_starts", batch.query_starts, DType::i32, {batch.sequences + 1}));
  KOHO_TRY(
      contract.tensor("context_lengths", batch.context_lengths, DType::i32, {batch.sequences}));
  KOHO_TRY(contract.that(batch.page_tables.shape.rank() == 2, "page_tables [S, pages]"));
  KOHO_TRY(contract.tensor("page_tables", batch.page_tables, DType::i32,
                           {batch.sequences, batch.page_tables.size(1)}, kRows));
  KOHO_TRY(
      contract.that(batch.decodes >= 0 && batch.decodes <= batch.sequences, "0 <= decodes <= S"));
  KOHO_TRY(contract.that(batch.page_tables.size(1) * kPageTokens >= batch.context_max,
                         "page_tables must cover context_max"));
  if (batch.tokens == 0) return {};
  if (trace_.skips(Op::attention)) return {};
  const Trace::Span span(trace_, Op::attention);
  return do_attention(out, q, kv, batch, heads);
}

Status Backend::silu_mul(const Activation& out, ConstTensorView gate_up) {
  const Contract contract("silu_mul", device());
  KOHO_TRY(contract.that(gate_up.shape.rank() == 2 && gate_up.size(1) % 2 == 0, "gate_up [T, 2F]"));
  KOHO_TRY(
      contract.tensor("gate_up", gate_up, DType::bf16, {gate_up.size(0), gate_up.size(1)}, kRows));
  KOHO_TRY(contract.activation("out", out, gate_up.size(0), gate_up.size(1) / 2));
  if (gate_up.size(0) == 0) return {};
  if (trace_.skips(Op::silu_mul)) return {};
  const Trace::Span span(trace_, Op::silu_mul);
  return do_silu_mul(out, gate_up);
}

Status Backend::route(const Routing& out,
                      ConstTensorView x,
                      ConstTensorView weight,
                      ConstTensorView bias,
                      const RouterSettings& settings) {
  const Contract contract("route", device());
  KOHO_TRY(
      contract.that(x.shape.rank() == 2 && weight.shape.rank() == 2, "x [T, H] · weight [E, H]"));
  const std::int64_t experts = weight.size(0);
  const DType dtype = weight.dtype == DType::f32 ? DType::f32 : DType::bf16;
  KOHO_TRY(contract.tensor("x", x, DType::bf16, {x.size(0), x.size(1)}, kRows));
  KOHO_TRY(contract.tensor("weight", weight, dtype, {experts, x.size(1)}));
  KOHO_TRY(contract.tensor("bias", bias, DType::f32, {experts}));
  KOHO_TRY(contract.tensor("ids", out.ids, DType::i32, {x.size(0), settings.top_k}));
  KOHO_TRY(contract.tensor("weights", out.weights, DType::f32, {x.size(0), settings.top_k}));
  KOHO_TRY(contract.that(settings.groups > 0 && experts % settings.groups == 0 &&
                             settings.groups_kept > 0 && settings.groups_kept <= settings.groups &&
                             settings.top_k <= experts / settings.groups * settings.groups_kept,
                         "groups divide the experts, and the kept groups hold top_k"));
  if (x.size(0) == 0) return {};
  if (trace_.skips(Op::route)) return {};
  const Trace::Span span(trace_, Op::route);
  return do_route(out, x, weight, bias, settings);
}

Status Backend::experts(TensorView out,
                        const Activation& x,
                        const Routing& routing,
                        const Experts& weights) {
  const Contract contract("experts", device());
  KOHO_TRY(contract.that(
      out.shape.rank() == 2 && routing.ids.shape.rank() == 2 && weights.placed != nullptr,
      "out [T, H] · ids [T, A] · placed experts"));
  const std::int64_t tokens = out.size(0);
  KOHO_TRY(contract.tensor("out", out, DType::bf16, {tokens, weights.hidden}));
  KOHO_TRY(contract.activation("x", x, tokens, weights.hidden, weights.needs));
  KOHO_TRY(contract.tensor("routing.ids", routing.ids, DType::i32, {tokens, routing.ids.size(1)}));
  KOHO_TRY(contract.tensor("routing.weights", routing.weights, DType::f32,
                           {tokens, routing.ids.size(1)}));
  if (tokens == 0) return {};
  if (trace_.skips(Op::experts)) return {};
  const Trace::Span span(trace_, Op::experts);
  return do_experts(out, x, routing, weights);
}

Status Backend::copy_pages(const KvLayer& kv, ConstTensorView pairs) {
  const Contract contract("copy_pages", device());
  KOHO_TRY(contract.that(kv.k.shape.rank() == 4 && pairs.shape.rank() == 2,
                         "kv.k [N, K, 64, D] · pairs [C, 2]"));
  KOHO_TRY(contract.kv(kv, kv.k.size(1), kv.k.size(3)));
  KOHO_TRY(contract.tensor("pairs", pairs, DType::i32, {pairs.size(0), 2}));
  if (pairs.size(0) == 0) return {};
  if (trace_.skips(Op::copy_pages)) return {};
  const Trace::Span span(trace_, Op::copy_pages);
  return do_copy_pages(kv, pairs);
}

static Status check_counts(const Contract& contract,
                           const TokenCounts& counts,
                           std::int64_t vocabulary) {
  const std::int64_t slots = counts.entries.size(0);
  KOHO_TRY(contract.tensor("counts.entries", counts.entries, DType::i32, {slots, vocabulary}));
  return contract.tensor("counts.nonzero", counts.nonzero, DType::i32,
                         {slots, race_bitmap_words(static_cast<std::int32_t>(vocabulary))});
}

Status Backend::sample(const SamplingOutput& out,
                       ConstTensorView logits,
                       const SamplingBatch& batch) {
  const Contract contract("sample", device());
  KOHO_TRY(contract.that(logits.shape.rank() == 2, "logits [R, V]"));
  const std::int64_t rows = logits.size(0);
  const std::int64_t vocabulary = logits.size(1);
  KOHO_TRY(contract.tensor("logits", logits, DType::f32, {rows, vocabulary}, kRows));
  KOHO_TRY(contract.tensor("rows", batch.rows, DType::u8,
                           {rows, static_cast<std::int64_t>(sizeof(SamplingRow))}));
  KOHO_TRY(contract.that(batch.tokens > 0 && batch.tokens <= vocabulary, "0 < tokens <= V"));
  if (!batch.biases.empty())
    KOHO_TRY(contract.tensor("biases", batch.biases, DType::u8,
                             {batch.biases.size(0), static_cast<std::int64_t>(sizeof(LogitBias))}));
  if (!batch.masks.empty())
    KOHO_TRY(contract.tensor("masks", batch.masks, DType::i32,
                             {batch.masks.size(0), ceil_div<std::int64_t>(vocabulary, 32)}));
  if (!batch.counts.empty()) KOHO_TRY(check_counts(contract, batch.counts, vocabulary));
  KOHO_TRY(contract.tensor("out.ids", out.ids, DType::i32, {rows}));
  KOHO_TRY(contract.optional("out.logprobs", out.logprobs, DType::f32, {rows}));
  KOHO_TRY(contract.optional("out.top_ids", out.top_ids, DType::i32, {rows, kTopLogprobsMax}));
  KOHO_TRY(
      contract.optional("out.top_logprobs", out.top_logprobs, DType::f32, {rows, kTopLogprobsMax}));
  KOHO_TRY(contract.that(out.top_ids.empty() == out.top_logprobs.empty(),
                         "top_ids and top_logprobs come together"));
  if (rows == 0) return {};
  if (trace_.skips(Op::sample)) return {};
  const Trace::Span span(trace_, Op::sample);
  return do_sample(out, logits, batch);
}

Status Backend::reset_counts(const TokenCounts& counts,
                             std::int64_t slot,
                             ConstTensorView prompt_ids,
                             ConstTensorView output_ids) {
  const Contract contract("reset_counts", device());
  KOHO_TRY(
      contract.that(counts.entries.shape.rank() == 2 && slot >= 0 && slot < counts.entries.size(0),
                    "counts.entries [slots, V] · a slot"));
  KOHO_TRY(check_counts(contract, counts, counts.entries.size(1)));
  KOHO_TRY(
      contract.that(prompt_ids.shape.rank() == 1 && output_ids.shape.rank() == 1, "ids are [n]"));
  KOHO_TRY(contract.tensor("prompt_ids", prompt_ids, DType::i32, {prompt_ids.size(0)}));
  KOHO_TRY(contract.tensor("output_ids", output_ids, DType::i32, {output_ids.size(0)}));
  if (trace_.skips(Op::reset_counts)) return {};
  const Trace::Span span(trace_, Op::reset_counts);
  return do_reset_counts(counts, slot, prompt_ids, output_ids);
}

Status Backend::count_sampled(const TokenCounts& counts,
                              ConstTensorView rows,
                              ConstTensorView ids) {
  const Contract contract("count_sampled", device());
  KOHO_TRY(contract.that(counts.entries.shape.rank() == 2 && ids.shape.rank() == 1,
                         "counts.entries [slots, V] · ids [R]"));
  KOHO_TRY(check_counts(contract, counts, counts.entries.size(1)));
  KOHO_TRY(contract.tensor("rows", rows, DType::u8,
                           {ids.size(0), static_cast<std::int64_t>(sizeof(SamplingRow))}));
  KOHO_TRY(contract.tensor("ids", ids, DType::i32, {ids.size(0)}));
  if (ids.size(0) == 0) return {};
  if (trace_.skips(Op::count_sampled)) return {};
  const Trace::Span span(trace_, Op::count_sampled);
  return do_count_sampled(counts, rows, ids);
}

std::string_view op_name(Op op) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(Op::count)> kNames{
      "gather_input_ids",
      "commit_sampled",
      "set_entries",
      "embed",
      "gather_rows",
      "rms_norm",
      "add_rms_norm",
      "linear",
      "qk_norm_rope_store_kv",
      "attention",
      "silu_mul",
      "route",
      "experts",
      "copy_pages",
      "sample",
      "reset_counts",
      "count_sampled",
      "all_reduce",
      "exchange_logits",
      "gather_sampled",
      "dispatch",
      "combine"};
  return kNames[static_cast<std::size_t>(op)];
}

}  // namespace koho
