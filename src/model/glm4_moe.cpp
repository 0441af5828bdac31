// SPDX-License-Identifier: Apache-2.0
// Loading a model: gives this rank's part of every weight to the backend, then allocates everything
// that a step needs. The forward pass is in model/forward.cpp.
#include "model/glm4_moe.h"

#include <algorithm>
#include <array>
#include <string>

#include "model/rank_sources.h"
#include "model/rope.h"

namespace koho {
namespace {

/// Places the weights of one rank, which rank_sources() has cut.
struct Placer {
  Backend& backend;
  const Shard& shard;

  Result<Tensor> whole(ConstTensorView source) const {
    if (source.empty()) return Tensor{};
    return backend.place(source);
  }

  Result<Linear> linear(const LinearSource& source) const {
    return backend.place_linear(std::array{source});
  }

  Result<LayerWeights::Mlp> mlp(const MlpSource& source) const {
    LayerWeights::Mlp mlp;
    KOHO_TRY_ASSIGN(mlp.gate_up, backend.place_linear(std::array{source.gate, source.up}));
    KOHO_TRY_ASSIGN(mlp.down, linear(source.down));
    return mlp;
  }

  /// `all` has the experts of every rank.
  Result<LayerWeights::Moe> moe(const MoeSources& source, const MoeSources& all) const {
    LayerWeights::Moe moe;
    KOHO_TRY_ASSIGN(moe.router, whole(source.router));
    KOHO_TRY_ASSIGN(moe.correction_bias, whole(source.correction_bias));
    for (const MlpSource& expert : all.experts)
      moe.dispatched =
          moe.dispatched | activation_needs(expert.gate.quant) | activation_needs(expert.up.quant);
    ExpertsSource local;
    local.total = static_cast<std::int64_t>(all.experts.size());
    if (shard.experts == ExpertLayout::expert_parallel) {
      KOHO_TRY_ASSIGN(const Range own, share(shard, local.total, "experts"));
      local.first = own.begin;
    }
    local.experts = source.experts;
    if (shard.dispatches_tokens()) {
      // A rank computes its own tokens' shared expert, whole, while it dispatches them.
      KOHO_TRY_ASSIGN(moe.shared, mlp(source.shared));
    } else {
      local.shared = source.shared;
    }
    KOHO_TRY_ASSIGN(moe.experts, backend.place_experts(local));
    return moe;
  }

  Result<LayerWeights> layer(const LayerSources& source, const LayerSources& all) const {
    LayerWeights layer;
    const AttentionSources& attention = source.attention;
    KOHO_TRY_ASSIGN(layer.input_norm, whole(source.input_norm));
    KOHO_TRY_ASSIGN(layer.qkv,
                    backend.place_linear(std::array{attention.q, attention.k, attention.v}));
    KOHO_TRY_ASSIGN(layer.q_norm, whole(attention.q_norm));
    KOHO_TRY_ASSIGN(layer.k_norm, whole(attention.k_norm));
    KOHO_TRY_ASSIGN(layer.o, linear(attention.o));
    KOHO_TRY_ASSIGN(layer.post_attention_norm, whole(source.post_attention_norm));
    if (source.moe) {
      KOHO_TRY_ASSIGN(layer.moe, moe(*source.moe, *all.moe));
    } else {
      KOHO_TRY_ASSIGN(layer.mlp, mlp(*source.mlp));
    }
    return layer;
  }
};

}  // namespace

Glm4Moe::Glm4Moe(const ModelConfig& config,
                 const Shard& shard,
                 Backend& backend,
                 Communicator& communicator)
    : config_(config),
      shard_(shard),
      backend_(&backend),
      collectives_(backend, communicator, shard, config.n_routed_experts) {}

Result<Glm4Moe> Glm4Moe::load(const ModelConfig& config,
                              const ModelSources& sources,
                              const LoadSettings& settings,
                              Backend& backend,
                              Communicator& communicator) {
  KOHO_TRY_ASSIGN(const ModelSources own, rank_sources(config, sources, settings.shard));
  Glm4Moe model(config, settings.shard, backend, communicator);
  const Shard& shard = model.shard_;
  const Shard tokens = shard.of_tokens();
  const Placer placer{backend, shard};
  KOHO_TRY_ASSIGN(const Range query_heads,
                  share(tokens, config.num_attention_heads, "query heads"));
  KOHO_TRY_ASSIGN(const Range kv_heads,
                  share(tokens, config.num_key_value_heads, "key/value heads"));
  KOHO_TRY_ASSIGN(const Range vocabulary,
                  share(tokens, config.vocab_size, "rows of the vocabulary"));

  model.heads_ = {.query_heads = query_heads.count,
                  .kv_heads = kv_heads.count,
                  .width = config.head_dim,
                  .rotary = config.rotary_dim()};
  model.router_ = {.top_k = config.num_experts_per_tok,
                   .groups = config.n_group,
                   .groups_kept = config.topk_group,
                   .normalize = config.norm_topk_prob,
                   .scale = static_cast<float>(config.routed_scaling_factor)};
  model.eps_ = static_cast<float>(config.rms_norm_eps);
  model.limits_ = settings.limits;
  model.limits_.vocabulary = config.vocab_size;
  model.limits_.experts_per_token = config.num_experts_per_tok;
  model.limits_.query_heads = model.heads_.query_heads;
  model.limits_.kv_heads = model.heads_.kv_heads;
  model.limits_.head_width = model.heads_.width;

  KOHO_TRY_ASSIGN(model.embedding_, placer.whole(own.embedding));
  for (std::size_t i = 0; i < sources.layers.size(); ++i) {
    Result<LayerWeights> layer = placer.layer(own.layers[i], sources.layers[i]);
    if (!layer.ok()) return std::move(layer).error().with_context("layer " + std::to_string(i));
    model.layers_.push_back(std::move(layer).value());
  }
  KOHO_TRY_ASSIGN(model.final_norm_, placer.whole(own.final_norm));
  KOHO_TRY_ASSIGN(model.head_, placer.linear(own.lm_head));

  KOHO_TRY_ASSIGN(Tensor rope, make_rope_table(model.limits_.context_max, config.rotary_dim(),
                                               config.rope_theta));
  KOHO_TRY_ASSIGN(model.rope_table_,
                  backend.allocate(DType::f32, rope.view().shape, "rotary angles"));
  KOHO_TRY(backend.upload(model.rope_table_.view(),
                          {rope.view().data, static_cast<std::size_t>(rope.view().bytes())}));
  KOHO_TRY_ASSIGN(model.activations_,
                  Activations::allocate(backend, model.limits_, model.widths()));
  // Under data-parallel attention captured decode steps of all ranks are padded to the same rows.
  StepLimits limits = model.limits_;
  if (shard.dispatches_tokens() && backend.supports_graphs())
    limits.tokens_max =
        std::max(round_up(limits.tokens_max, shard.ranks), shard.ranks * limits.sequences_max);
  KOHO_TRY(model.collectives_.allocate({.tokens_max = limits.tokens_max,
                                        .hidden = config.hidden_size,
                                        .top_k = config.num_experts_per_tok,
                                        .needs = model.dispatched_needs(),
                                        .logit_rows_max = limits.logit_rows_max,
                                        .logit_columns = vocabulary.count}));
  if (tokens.ranks > 1) {
    KOHO_TRY_ASSIGN(model.logits_shard_,
                    backend.allocate(DType::f32, {model.limits_.logit_rows_max, vocabulary.count},
                                     "this rank's logits"));
  }
  KOHO_TRY_ASSIGN(model.kv_cache_, KvCache::allocate(backend, {.layers = config.num_hidden_layers,
                                                               .pages = settings.kv_pages,
                                                               .kv_heads = kv_heads.count,
                                                               .width = config.head_dim,
                                                               .dtype = settings.kv_dtype}));
  KOHO_TRY(backend.reserve(limits));
  return model;
}

Status Glm4Moe::check_limits(const Batch& batch) const {
  if (batch.tokens <= limits_.tokens_max && batch.sequences <= limits_.sequences_max &&
      batch.context_max <= limits_.context_max &&
      batch.logit_rows.size(0) <= limits_.logit_rows_max)
    return {};
  return make_error(ErrorCode::invalid_argument,
                    "a step of {} tokens, {} sequences, {} logit rows, context {} exceeds the "
                    "limits of {}, {}, {}, {}",
                    batch.tokens, batch.sequences, batch.logit_rows.size(0), batch.context_max,
                    limits_.tokens_max, limits_.sequences_max, limits_.logit_rows_max,
                    limits_.context_max);
}

ActivationNeeds Glm4Moe::block_needs(const LayerWeights& layer) const {
  if (layer.mlp) return layer.mlp->gate_up.needs;
  const ActivationNeeds router{.values = true, .per_token = false, .per_block = false};
  const ActivationNeeds needs = layer.moe->experts.needs | router;
  if (!layer.moe->shared) return needs;
  return needs | layer.moe->dispatched | layer.moe->shared->gate_up.needs;
}

ActivationNeeds Glm4Moe::dispatched_needs() const {
  ActivationNeeds needs;
  for (const LayerWeights& layer : layers_)
    if (layer.moe) needs = needs | layer.moe->dispatched;
  return needs;
}

ActivationWidths Glm4Moe::widths() const {
  ActivationWidths widths{.hidden = config_.hidden_size,
                          .qkv = (heads_.query_heads + 2 * heads_.kv_heads) * heads_.width,
                          .query = heads_.query_heads * heads_.width,
                          .ffn = 0,
                          .experts_top = 0,
                          .vocabulary = config_.vocab_size,
                          .logit_rows = collectives_.padded_sampled_rows(limits_.logit_rows_max) /
                                        collectives_.sampling_ranks(),
                          .hidden_needs = {},
                          .query_needs = {},
                          .ffn_needs = {},
                          .head_needs = head_.needs};
  for (const LayerWeights& layer : layers_) {
    widths.hidden_needs = widths.hidden_needs | layer.qkv.needs | block_needs(layer);
    widths.query_needs = widths.query_needs | layer.o.needs;
    if (layer.moe) widths.experts_top = router_.top_k;
    const std::optional<LayerWeights::Mlp>& mlp = layer.moe ? layer.moe->shared : layer.mlp;
    if (!mlp) continue;
    widths.ffn = std::max(widths.ffn, mlp->down.in_features);
    widths.ffn_needs = widths.ffn_needs | mlp->down.needs;
  }
  return widths;
}

}  // namespace koho
