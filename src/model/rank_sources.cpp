// SPDX-License-Identifier: Apache-2.0
#include "model/rank_sources.h"

#include <string>
#include <utility>

namespace koho {
namespace {

/// Which rows and columns are a rank's.
struct Cut {
  const Shard& shard;
  Range query;      // rows of q, columns of o
  Range key_value;  // rows of k and v

  Result<AttentionSources> attention(const AttentionSources& source) const {
    AttentionSources part = source;
    KOHO_TRY_ASSIGN(part.q, rows_of(source.q, query));
    KOHO_TRY_ASSIGN(part.k, rows_of(source.k, key_value));
    KOHO_TRY_ASSIGN(part.v, rows_of(source.v, key_value));
    KOHO_TRY_ASSIGN(part.o, columns_of(source.o, query));
    return part;
  }

  Result<MoeSources> moe(const MoeSources& source) const {
    MoeSources part{source.router, source.correction_bias, {}, {}};
    const auto total = static_cast<std::int64_t>(source.experts.size());
    if (shard.experts == ExpertLayout::expert_parallel) {
      KOHO_TRY_ASSIGN(const Range own, share(shard, total, "experts"));
      const auto begin = source.experts.begin() + own.begin;
      part.experts.assign(begin, begin + own.count);
    } else {
      for (const MlpSource& expert : source.experts) {
        KOHO_TRY_ASSIGN(MlpSource slice, slice_of(expert, shard));
        part.experts.push_back(std::move(slice));
      }
    }
    // Under data-parallel attention a rank computes its own tokens' shared expert, whole.
    KOHO_TRY_ASSIGN(part.shared, slice_of(source.shared, shard.of_tokens()));
    return part;
  }

  Result<LayerSources> layer(const LayerSources& source) const {
    LayerSources part{source.input_norm, {}, source.post_attention_norm, {}, {}};
    KOHO_TRY_ASSIGN(part.attention, attention(source.attention));
    if (source.moe) {
      KOHO_TRY_ASSIGN(part.moe, moe(*source.moe));
    } else {
      KOHO_TRY_ASSIGN(part.mlp, slice_of(*source.mlp, shard.of_tokens()));
    }
    return part;
  }
};

}  // namespace

Result<ModelSources> rank_sources(const ModelConfig& config,
                                  const ModelSources& sources,
                                  const Shard& shard) {
  KOHO_TRY(check_shard(config, shard));
  const Shard tokens = shard.of_tokens();
  KOHO_TRY_ASSIGN(const Range heads, share(tokens, config.num_attention_heads, "query heads"));
  KOHO_TRY_ASSIGN(const Range kv_heads,
                  share(tokens, config.num_key_value_heads, "key/value heads"));
  KOHO_TRY_ASSIGN(const Range vocabulary,
                  share(tokens, config.vocab_size, "rows of the vocabulary"));
  const Cut cut{.shard = shard,
                .query = {heads.begin * config.head_dim, heads.count * config.head_dim},
                .key_value = {kv_heads.begin * config.head_dim, kv_heads.count * config.head_dim}};
  ModelSources part{sources.embedding, {}, sources.final_norm, {}, {}};
  for (std::size_t i = 0; i < sources.layers.size(); ++i) {
    Result<LayerSources> layer = cut.layer(sources.layers[i]);
    if (!layer.ok()) return std::move(layer).error().with_context("layer " + std::to_string(i));
    part.layers.push_back(std::move(layer).value());
  }
  KOHO_TRY_ASSIGN(part.lm_head, rows_of(sources.lm_head, vocabulary));
  return part;
}

void for_each_source(const ModelSources& sources,
                     const std::function<void(const ConstTensorView&, SourcePart)>& visit) {
  const auto tensor = [&](const ConstTensorView& view, SourcePart part = SourcePart::weight) {
    if (!view.empty()) visit(view, part);
  };
  const auto linear = [&](const LinearSource& source) {
    tensor(source.weight);
    tensor(source.scale, SourcePart::scale);
    tensor(source.bias, SourcePart::bias);
  };
  const auto mlp = [&](const MlpSource& source) {
    linear(source.gate);
    linear(source.up);
    linear(source.down);
  };
  tensor(sources.embedding);
  for (const LayerSources& layer : sources.layers) {
    tensor(layer.input_norm);
    const AttentionSources& attention = layer.attention;
    for (const LinearSource* source : {&attention.q, &attention.k, &attention.v, &attention.o})
      linear(*source);
    tensor(attention.q_norm);
    tensor(attention.k_norm);
    tensor(layer.post_attention_norm);
    if (layer.mlp) mlp(*layer.mlp);
    if (!layer.moe) continue;
    tensor(layer.moe->router);
    tensor(layer.moe->correction_bias);
    for (const MlpSource& expert : layer.moe->experts) mlp(expert);
    mlp(layer.moe->shared);
  }
  tensor(sources.final_norm);
  linear(sources.lm_head);
}

std::int64_t bytes_of(const ModelSources& sources) {
  std::int64_t bytes = 0;
  for_each_source(sources, [&](const ConstTensorView& view, SourcePart) { bytes += view.bytes(); });
  return bytes;
}

}  // namespace koho
