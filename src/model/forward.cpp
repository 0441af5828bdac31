// SPDX-License-Identifier: Apache-2.0
// The forward pass of glm4_moe, in the order of docs/model.md: embedding, then per layer attention
// and an MLP or MoE block, then the head. It knows no device, no strides and no dtypes; it
// allocates nothing and never waits, so that a CUDA graph can capture it.
//
// T tokens of the step, H hidden, R rows whose logits are wanted. `residual` is the residual
// stream, `block_output` what the latest block adds to it, `x` the normed input of the next block.
#include "model/glm4_moe.h"

namespace koho {

Result<SampledLogits> Glm4Moe::forward(const Batch& batch) {
  KOHO_TRY(check_limits(batch));
  const std::int64_t tokens = batch.tokens;
  const TensorView residual = activations_.residual.view().first(tokens);          // [T, H]
  const TensorView block_output = activations_.block_output.view().first(tokens);  // [T, H]
  const auto add_norm = [&](const Activation& x, const Tensor& norm) {
    return collectives_.all_reduce_add_norm(x, residual, block_output, norm.view(), eps_);
  };

  KOHO_TRY(backend_->embed(residual, batch.token_ids, embedding_.view()));
  Activation x = activations_.x.view(tokens, layers_[0].qkv.needs);  // [T, H]
  KOHO_TRY(backend_->rms_norm(x, residual, layers_[0].input_norm.view(), eps_));

  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& layer = layers_[i];
    KOHO_TRY(attention_block(i, batch, x, block_output));

    x = activations_.x.view(tokens, block_needs(layer));
    KOHO_TRY(add_norm(x, layer.post_attention_norm));
    KOHO_TRY(layer.moe ? moe_block(*layer.moe, batch, x, block_output)
                       : mlp_block(*layer.mlp, x, block_output));

    if (i + 1 == layers_.size()) break;  // the head adds the last block's output
    const LayerWeights& next = layers_[i + 1];
    x = activations_.x.view(tokens, next.qkv.needs);
    KOHO_TRY(add_norm(x, next.input_norm));
  }
  return head(batch, residual, block_output);
}

/// block_output = o(attention(rope(norm(q(x))), rope(norm(k(x))), v(x)))
Status Glm4Moe::attention_block(std::size_t i,
                                const Batch& batch,
                                const Activation& x,
                                TensorView block_output) {
  const LayerWeights& layer = layers_[i];
  const std::int64_t tokens = batch.tokens;
  const TensorView qkv = activations_.qkv.view().first(tokens);  // [T, (Q + 2K) * D]
  const TensorView q =                                           // [T, Q, D]
      activations_.q.view().first(tokens).reshape({tokens, heads_.query_heads, heads_.width});
  const Activation attention_output =
      activations_.attention_output.view(tokens, layer.o.needs);  // [T, Q * D]
  const KvLayer kv = kv_cache_.layer(static_cast<std::int64_t>(i));
  const QkNormRope norm_rope{.heads = heads_,
                             .q_norm = layer.q_norm.view(),
                             .k_norm = layer.k_norm.view(),
                             .rope_table = rope_table_.view(),
                             .eps = eps_};

  KOHO_TRY(backend_->linear(qkv, x, layer.qkv));
  KOHO_TRY(backend_->qk_norm_rope_store_kv({.values = q}, kv, {.values = qkv}, batch.positions,
                                           batch.slots, norm_rope));
  KOHO_TRY(backend_->attention(attention_output, q, kv, batch, heads_));
  return backend_->linear(block_output, attention_output, layer.o);
}

/// block_output = down(silu(gate(x)) * up(x)): a dense layer, or, under data-parallel attention,
/// the shared expert
Status Glm4Moe::mlp_block(const LayerWeights::Mlp& mlp,
                          const Activation& x,
                          TensorView block_output) {
  const std::int64_t tokens = block_output.size(0);
  const TensorView gate_up =  // [T, 2F]
      packed_rows(activations_.gate_up, tokens, mlp.gate_up.out_features);
  const Activation ffn =  // [T, F]
      activations_.ffn.view(tokens, mlp.down.in_features, mlp.down.needs);

  KOHO_TRY(backend_->linear(gate_up, x, mlp.gate_up));
  KOHO_TRY(backend_->silu_mul(ffn, gate_up));
  return backend_->linear(block_output, ffn, mlp.down);
}

/// block_output = sum of the A chosen experts' outputs, weighted, + shared(x)
Status Glm4Moe::moe_block(const LayerWeights::Moe& moe,
                          const Batch& batch,
                          const Activation& x,
                          TensorView block_output) {
  const std::int64_t tokens = block_output.size(0);
  const Routing routing{.ids = activations_.expert_ids.view().first(tokens),           // [T, A]
                        .weights = activations_.expert_weights.view().first(tokens)};  // [T, A]

  KOHO_TRY(
      backend_->route(routing, x.values, moe.router.view(), moe.correction_bias.view(), router_));
  KOHO_TRY_ASSIGN(
      const DispatchedTokens work,
      collectives_.dispatch_to_experts(x, routing, block_output, moe.dispatched, batch.row_starts));
  if (moe.shared) KOHO_TRY(mlp_block(*moe.shared, x, block_output));
  KOHO_TRY(collectives_.wait_for_dispatch());
  KOHO_TRY(backend_->experts(work.out, work.x, work.routing, moe.experts));
  return collectives_.combine_from_experts(block_output, work);
}

/// logits = lm_head(rms_norm(residual + block_output)), for the R rows alone
Result<SampledLogits> Glm4Moe::head(const Batch& batch,
                                    TensorView residual,
                                    TensorView block_output) {
  const std::int64_t rows = batch.logit_rows.size(0);
  const TensorView last_residual = activations_.last_residual.view().first(rows);          // [R, H]
  const TensorView last_block_output = activations_.last_block_output.view().first(rows);  // [R, H]
  const Activation last = activations_.last.view(rows, head_.needs);                       // [R, H]
  const SampledLogits logits = this->logits(rows);

  KOHO_TRY(backend_->gather_rows(last_residual, residual, batch.logit_rows));
  KOHO_TRY(backend_->gather_rows(last_block_output, block_output, batch.logit_rows));
  KOHO_TRY(collectives_.all_reduce_add_norm(last, last_residual, last_block_output,
                                            final_norm_.view(), eps_));
  if (logits_shard_.empty()) {
    KOHO_TRY(backend_->linear(logits.values, last, head_));
    return logits;
  }
  const TensorView shard = logits_shard_.view().first(rows);  // [R, V / ranks]
  KOHO_TRY(backend_->linear(shard, last, head_));
  KOHO_TRY(collectives_.exchange_logits(logits.values, shard));
  return logits;
}

}  // namespace koho
