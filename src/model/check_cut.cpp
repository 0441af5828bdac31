// SPDX-License-Identifier: Apache-2.0
#include "model/check_cut.h"

#include <string>

namespace koho {
namespace {

/// The cuts of one rank, in the order of Glm4Moe::load.
struct RankCut {
  const Shard& shard;
  Range query, key_value, vocabulary;

  static Result<RankCut> of(const ModelConfig& config, const Shard& shard) {
    const Shard tokens = shard.of_tokens();
    RankCut cut{.shard = shard, .query = {}, .key_value = {}, .vocabulary = {}};
    KOHO_TRY_ASSIGN(cut.query, share(tokens, config.num_attention_heads, "query heads"));
    KOHO_TRY_ASSIGN(cut.key_value, share(tokens, config.num_key_value_heads, "key/value heads"));
    KOHO_TRY_ASSIGN(cut.vocabulary, share(tokens, config.vocab_size, "rows of the vocabulary"));
    for (Range* heads : {&cut.query, &cut.key_value}) {
      heads->begin *= config.head_dim;
      heads->count *= config.head_dim;
    }
    return cut;
  }

  Status check(const LayerSources& layer) const {
    KOHO_TRY(rows_of(layer.attention.q, query));
    KOHO_TRY(rows_of(layer.attention.k, key_value));
    KOHO_TRY(rows_of(layer.attention.v, key_value));
    KOHO_TRY(columns_of(layer.attention.o, query));
    if (layer.mlp) KOHO_TRY(slice_of(*layer.mlp, shard.of_tokens()));
    if (!layer.moe) return {};
    KOHO_TRY(slice_of(layer.moe->shared, shard.of_tokens()));
    if (shard.experts == ExpertLayout::expert_parallel) return {};
    for (const MlpSource& expert : layer.moe->experts) KOHO_TRY(slice_of(expert, shard));
    return {};
  }
};

}  // namespace

Status check_cut(const ModelConfig& config, const ModelSources& sources, const Shard& shard) {
  for (std::int64_t rank = 0; rank < shard.ranks; ++rank) {
    Shard one = shard;
    one.rank = rank;
    KOHO_TRY(check_shard(config, one));
    KOHO_TRY_ASSIGN(const RankCut cut, RankCut::of(config, one));
    for (std::size_t i = 0; i < sources.layers.size(); ++i)
      KOHO_TRY(cut.check(sources.layers[i]).with_context("layer " + std::to_string(i)));
    KOHO_TRY(rows_of(sources.lm_head, cut.vocabulary));
  }
  return {};
}

}  // namespace koho
