// SPDX-License-Identifier: Apache-2.0
#include "model/sharding.h"

#include <array>
#include <span>

#include "base/arithmetic.h"

namespace koho {
namespace {

/// The blocks of 128 that a range covers, if it cuts through none (the last block may be short).
Result<Range> blocks_of(Range range, std::int64_t total) {
  const bool starts = range.begin % kQuantBlock == 0;
  const bool ends = range.count % kQuantBlock == 0 || range.begin + range.count == total;
  if (starts && ends) return Range{range.begin / kQuantBlock, ceil_div(range.count, kQuantBlock)};
  return make_error(
      ErrorCode::unsupported,
      "{}..{} of {} cuts through a block of 128 of a block-quantised weight; use fewer ranks",
      range.begin, range.begin + range.count, total);
}

}  // namespace

Result<Range> share(const Shard& shard, std::int64_t total, const char* what) {
  if (total % shard.ranks != 0)
    return make_error(ErrorCode::unsupported,
                      "{} ranks cannot divide {} {} evenly; take a number of ranks that divides it",
                      shard.ranks, total, what);
  const std::int64_t count = total / shard.ranks;
  return Range{shard.rank * count, count};
}

Status check_shard(const ModelConfig& config, const Shard& shard) {
  if (shard.ranks < 1 || shard.rank < 0 || shard.rank >= shard.ranks)
    return make_error(ErrorCode::invalid_argument, "there is no rank {} of {}", shard.rank,
                      shard.ranks);
  const Shard tokens = shard.of_tokens();
  KOHO_TRY(share(tokens, config.num_attention_heads, "query heads"));
  KOHO_TRY(share(tokens, config.num_key_value_heads, "key/value heads"));
  KOHO_TRY(share(tokens, config.vocab_size, "rows of the vocabulary"));
  if (config.first_k_dense_replace > 0)
    KOHO_TRY(share(tokens, config.intermediate_size, "columns of an FFN"));
  if (config.num_moe_layers() == 0) return {};
  KOHO_TRY(share(tokens, config.shared_intermediate_size(), "columns of the shared expert"));
  if (shard.experts == ExpertLayout::expert_parallel) {
    KOHO_TRY(share(shard, config.n_routed_experts, "experts"));
  } else {
    KOHO_TRY(share(shard, config.moe_intermediate_size, "columns of an expert"));
  }
  return {};
}

Result<LinearSource> rows_of(const LinearSource& source, Range rows) {
  LinearSource part = source;
  part.weight = source.weight.slice(0, rows.begin, rows.count);
  if (source.quant == WeightQuant::fp8_channel)
    part.scale = source.scale.slice(0, rows.begin, rows.count);
  if (source.quant == WeightQuant::fp8_block) {
    KOHO_TRY_ASSIGN(const Range blocks, blocks_of(rows, source.out_features()));
    part.scale = source.scale.slice(0, blocks.begin, blocks.count);
  }
  if (!source.bias.empty()) part.bias = source.bias.slice(0, rows.begin, rows.count);
  return part;
}

Result<LinearSource> columns_of(const LinearSource& source, Range columns) {
  if (columns.count == source.in_features()) return source;
  if (!source.bias.empty())
    return make_error(ErrorCode::unsupported, "a layer with a bias cannot be cut by columns");
  LinearSource part = source;
  part.weight = source.weight.slice(1, columns.begin, columns.count);
  if (source.quant == WeightQuant::fp8_block) {
    KOHO_TRY_ASSIGN(const Range blocks, blocks_of(columns, source.in_features()));
    part.scale = source.scale.slice(1, blocks.begin, blocks.count);
  }
  return part;
}

Result<MlpSource> slice_of(const MlpSource& source, const Shard& shard) {
  KOHO_TRY_ASSIGN(const Range part, share(shard, source.gate.out_features(), "columns of an FFN"));
  KOHO_TRY_ASSIGN(LinearSource gate, rows_of(source.gate, part));
  KOHO_TRY_ASSIGN(LinearSource up, rows_of(source.up, part));
  KOHO_TRY_ASSIGN(LinearSource down, columns_of(source.down, part));
  return MlpSource{gate, up, down};
}

Collectives::Collectives(Backend& backend,
                         Communicator& communicator,
                         const Shard& shard,
                         std::int64_t experts)
    : backend_(&backend),
      communicator_(&communicator),
      dispatches_(shard.dispatches_tokens()),
      cuts_vocabulary_(shard.of_tokens().ranks > 1),
      experts_per_rank_(shard.experts == ExpertLayout::expert_parallel ? experts / shard.ranks
                                                                       : 0) {}

Status Collectives::allocate(const Room& room) {
  CollectiveSizes sizes{
      .tokens_max = room.tokens_max, .hidden = room.hidden, .logit_rows_max = room.logit_rows_max};
  if (cuts_vocabulary_) {
    sizes.logit_columns = room.logit_columns;
    sizes.gathered_row_bytes = 8 + 8 * kTopLogprobsMax;  // ids, log-probabilities, the likeliest
  }
  if (dispatches_) {
    const auto tensor = [&](DType dtype, std::int64_t width) {
      return backend_->allocate(dtype, {room.tokens_max, width}, "tokens dispatched to experts");
    };
    KOHO_TRY_ASSIGN(
        x_, ActivationBuffer::allocate(*backend_, room.tokens_max, room.hidden, room.needs));
    KOHO_TRY_ASSIGN(expert_ids_, tensor(DType::i32, room.top_k));
    KOHO_TRY_ASSIGN(expert_weights_, tensor(DType::f32, room.top_k));
    KOHO_TRY_ASSIGN(out_, tensor(DType::bf16, room.hidden));
    const Activation x = x_.view(1, room.needs);
    for (const TensorView& view :
         {x.values, x.quantized, x.scales, x.block_quantized, x.block_scales,
          expert_ids_.view().first(1), expert_weights_.view().first(1)})
      sizes.dispatched_row_bytes += view.bytes();
  }
  return communicator_->reserve(sizes);
}

Status Collectives::all_reduce_add_norm(const Activation& out,
                                        TensorView residual,
                                        TensorView block_output,
                                        ConstTensorView weight,
                                        float eps) {
  if (!dispatches_ && communicator_->ranks() > 1) {  // else every rank has the whole
    if (backend_->trace().skips(Op::all_reduce)) return {};
    const Trace::Span span(backend_->trace(), Op::all_reduce);
    KOHO_TRY_ASSIGN(const bool fused,
                    communicator_->all_reduce_add_norm(out, residual, block_output, weight, eps));
    if (fused) return {};
    KOHO_TRY(communicator_->all_reduce(block_output));
  }
  return backend_->add_rms_norm(out, residual, block_output, weight, eps);
}

Status Collectives::exchange_logits(TensorView logits, ConstTensorView part) {
  if (backend_->trace().skips(Op::exchange_logits)) return {};
  const Trace::Span span(backend_->trace(), Op::exchange_logits);
  return communicator_->exchange_rows(logits, part);
}

Status Collectives::gather_sampled(std::span<const TensorView> tensors) {
  if (!cuts_vocabulary_ || backend_->trace().skips(Op::gather_sampled)) return {};
  const Trace::Span span(backend_->trace(), Op::gather_sampled);
  return communicator_->all_gather_rows(tensors);
}

Result<DispatchedTokens> Collectives::dispatch_to_experts(
    const Activation& x,
    const Routing& routing,
    TensorView block_output,
    const ActivationNeeds& needs,
    std::span<const std::int64_t> row_starts) {
  if (!dispatches_) return DispatchedTokens{block_output, x, routing};
  const Trace::Span span(backend_->trace(), Op::dispatch);
  const std::int64_t room = out_.view().size(0);
  const Activation arrived = x_.view(room, needs);
  std::array<DispatchTensor, 7> rows{DispatchTensor{routing.ids, expert_ids_.view()},
                                     DispatchTensor{routing.weights, expert_weights_.view()}};
  std::size_t count = 2;
  const auto add = [&](const TensorView& from, const TensorView& to) {
    if (!to.empty()) rows[count++] = {from, to};
  };
  add(x.values, arrived.values);
  add(x.quantized, arrived.quantized);
  add(x.scales, arrived.scales);
  add(x.block_quantized, arrived.block_quantized);
  add(x.block_scales, arrived.block_scales);
  KOHO_TRY_ASSIGN(
      const std::int64_t tokens,
      communicator_->dispatch(
          {.ids = routing.ids, .ids_per_rank = experts_per_rank_, .row_starts = row_starts},
          std::span(rows).first(count)));
  return DispatchedTokens{
      out_.view().first(tokens), arrived.first(tokens),
      Routing{expert_ids_.view().first(tokens), expert_weights_.view().first(tokens)}};
}

Status Collectives::wait_for_dispatch() {
  return dispatches_ ? communicator_->wait_for_dispatch() : Status();
}

Status Collectives::combine_from_experts(TensorView block_output, const DispatchedTokens& work) {
  if (!dispatches_) return {};
  const Trace::Span span(backend_->trace(), Op::combine);
  return communicator_->combine(block_output, work.out);
}

}  // namespace koho
