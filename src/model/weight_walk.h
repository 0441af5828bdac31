// SPDX-License-Identifier: Apache-2.0
// THE table of a glm4_moe model's tensors, as one walk over the model that names every weight, its
// shape and its place in ModelSources. Private to weights.cpp, which lists and supplies the rows,
// and to resolve_weights.cpp, which looks them up in a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/weights.h"

namespace koho {

inline std::string layer_prefix(std::int64_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

/// Walks over every weight of a model and calls its visitor for each. A visitor has
///   tensor(ExpectedWeight, ConstTensorView& target)
///   linear(ExpectedWeight, LinearSource& target)
///   fused_experts(prefix, MoeSources& target): true if it took a layer's experts, which some
///     checkpoints hold as two 3-D tensors
template <typename Visitor>
class WeightWalk {
 public:
  WeightWalk(const ModelConfig& config, Visitor& visitor) : config_(config), visitor_(visitor) {}

  void model(ModelSources& sources, bool with_mtp) {
    const std::int64_t vocab = config_.vocab_size;
    tensor("model.embed_tokens.weight", WeightRole::embedding, {vocab, hidden()},
           sources.embedding);
    sources.layers.resize(static_cast<std::size_t>(config_.num_hidden_layers));
    for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i)
      layer(layer_prefix(i), config_.is_moe(i), sources.layers[static_cast<std::size_t>(i)]);
    vector("model.norm.weight", hidden(), sources.final_norm);
    linear("lm_head", vocab, hidden(), sources.lm_head);
    if (with_mtp) mtp(layer_prefix(config_.num_hidden_layers), sources.mtp.emplace());
  }

 private:
  std::int64_t hidden() const { return config_.hidden_size; }

  void layer(const std::string& prefix, bool moe_layer, LayerSources& layer) {
    vector(prefix + "input_layernorm.weight", hidden(), layer.input_norm);
    attention(prefix + "self_attn.", layer.attention);
    vector(prefix + "post_attention_layernorm.weight", hidden(), layer.post_attention_norm);
    if (moe_layer) {
      moe(prefix + "mlp.", layer.moe.emplace());
    } else {
      mlp(prefix + "mlp.", config_.intermediate_size, layer.mlp.emplace(), false);
    }
  }

  void attention(const std::string& prefix, AttentionSources& attention) {
    const bool bias = config_.attention_bias;
    linear(prefix + "q_proj", config_.query_width(), hidden(), attention.q, {.bias = bias});
    linear(prefix + "k_proj", config_.key_value_width(), hidden(), attention.k, {.bias = bias});
    linear(prefix + "v_proj", config_.key_value_width(), hidden(), attention.v, {.bias = bias});
    linear(prefix + "o_proj", hidden(), config_.query_width(), attention.o);
    if (!config_.use_qk_norm) return;
    vector(prefix + "q_norm.weight", config_.head_dim, attention.q_norm);
    vector(prefix + "k_norm.weight", config_.head_dim, attention.k_norm);
  }

  void mlp(const std::string& prefix, std::int64_t ffn, MlpSource& mlp, bool routed) {
    linear(prefix + "gate_proj", ffn, hidden(), mlp.gate, {.routed = routed});
    linear(prefix + "up_proj", ffn, hidden(), mlp.up, {.routed = routed});
    linear(prefix + "down_proj", hidden(), ffn, mlp.down, {.routed = routed});
  }

  void moe(const std::string& prefix, MoeSources& moe) {
    const std::int64_t experts = config_.n_routed_experts;
    tensor(prefix + "gate.weight", WeightRole::router, {experts, hidden()}, moe.router);
    tensor(prefix + "gate.e_score_correction_bias", WeightRole::correction_bias, {experts},
           moe.correction_bias);
    moe.experts.resize(static_cast<std::size_t>(experts));
    if (!visitor_.fused_experts(prefix + "experts.", moe))
      for (std::int64_t e = 0; e < experts; ++e)
        mlp(fmt::format("{}experts.{}.", prefix, e), config_.moe_intermediate_size,
            moe.experts[static_cast<std::size_t>(e)], true);
    mlp(prefix + "shared_experts.", config_.shared_intermediate_size(), moe.shared, false);
  }

  void mtp(const std::string& prefix, MtpSources& mtp) {
    vector(prefix + "enorm.weight", hidden(), mtp.embedding_norm);
    vector(prefix + "hnorm.weight", hidden(), mtp.hidden_norm);
    linear(prefix + "eh_proj", hidden(), 2 * hidden(), mtp.projection);
    layer(prefix, true, mtp.layer);
    vector(prefix + "shared_head.norm.weight", hidden(), mtp.final_norm);
    visitor_.tensor({.name = prefix + "embed_tokens.weight",
                     .role = WeightRole::embedding,
                     .shape = {config_.vocab_size, hidden()},
                     .optional = true},
                    mtp.embedding);
    linear(prefix + "shared_head.head", config_.vocab_size, hidden(), mtp.head, {.optional = true});
  }

  struct Traits {
    bool bias = false;
    bool optional = false;
    bool routed = false;
  };

  void tensor(std::string name, WeightRole role, Shape shape, ConstTensorView& target) {
    visitor_.tensor({.name = std::move(name), .role = role, .shape = shape}, target);
  }
  void vector(std::string name, std::int64_t size, ConstTensorView& target) {
    tensor(std::move(name), WeightRole::vector, {size}, target);
  }
  void linear(const std::string& module, std::int64_t out, std::int64_t in, LinearSource& target) {
    linear(module, out, in, target, Traits{});
  }
  void linear(const std::string& module,
              std::int64_t out,
              std::int64_t in,
              LinearSource& target,
              Traits traits) {
    visitor_.linear({.name = module + ".weight",
                     .role = WeightRole::linear,
                     .shape = {out, in},
                     .bias = traits.bias,
                     .optional = traits.optional,
                     .routed = traits.routed},
                    target);
  }

  const ModelConfig& config_;
  Visitor& visitor_;
};

}  // namespace koho
