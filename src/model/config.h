// SPDX-License-Identifier: Apache-2.0
// What config.json and generation_config.json say about a glm4_moe model. Fields have the keys'
// names. A fact of the model has no default, except partial_rotary_factor. The parser refuses by
// name whatever would make it another model than koho computes. An accepted config has every number
// in range and in agreement with the others, and every product of its sizes fits 64 bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/quantization_config.h"
#include "sampling/parameters.h"

namespace koho {

struct ModelConfig {
  std::int64_t vocab_size = 0;                // V, rows of embedding and head
  std::int64_t hidden_size = 0;               // H
  std::int64_t num_hidden_layers = 0;         // L, without the MTP layer
  std::int64_t num_attention_heads = 0;       // Q
  std::int64_t num_key_value_heads = 0;       // K
  std::int64_t head_dim = 0;                  // D
  std::int64_t intermediate_size = 0;         // F of a dense layer
  std::int64_t moe_intermediate_size = 0;     // F of a routed expert
  std::int64_t n_routed_experts = 0;          // E
  std::int64_t n_shared_experts = 0;          // computed as one of their summed width
  std::int64_t num_experts_per_tok = 0;       // A
  std::int64_t n_group = 0;                   // groups of experts
  std::int64_t topk_group = 0;                // groups kept
  std::int64_t first_k_dense_replace = 0;     // layers below are dense
  std::int64_t num_nextn_predict_layers = 0;  // MTP layers announced
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0.0;
  double rope_theta = 0.0;
  double partial_rotary_factor = 0.0;
  double routed_scaling_factor = 0.0;
  bool attention_bias = false;  // of q, k, v
  bool use_qk_norm = false;
  bool norm_topk_prob = false;
  std::optional<std::vector<std::int32_t>> eos_token_ids;  // nullopt: the key is absent
  std::optional<QuantizationConfig> quantization;

  bool is_moe(std::int64_t layer) const { return layer >= first_k_dense_replace; }
  std::int64_t num_moe_layers() const {
    return num_hidden_layers > first_k_dense_replace ? num_hidden_layers - first_k_dense_replace
                                                     : 0;
  }
  /// The dims of a head that RoPE rotates.
  std::int64_t rotary_dim() const {
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  std::int64_t query_width() const { return num_attention_heads * head_dim; }
  std::int64_t key_value_width() const { return num_key_value_heads * head_dim; }
  std::int64_t shared_intermediate_size() const { return moe_intermediate_size * n_shared_experts; }
};

/// Stop tokens and default sampling parameters of generation_config.json.
struct GenerationConfig {
  std::vector<std::int32_t> eos_token_ids;  // empty: answers end by their length only
  SamplingParameters sampling;              // advice for rows that are `advised`; else the defaults
  std::optional<bool> do_sample;
};

/// Reads the text of a config.json. Appends to `warnings` what is odd but harmless. Errors:
/// corrupt_data (not JSON); invalid_argument (missing, of the wrong kind, out of range,
/// contradictory); unsupported (another model or variant), each naming the key.
Result<ModelConfig> parse_model_config(std::string_view text, std::vector<std::string>& warnings);

/// Reads the text of a generation_config.json; stop tokens come from `model` where it has none.
/// Sampling parameters must lie in a request's ranges (sampling/parameter_table.h). Errors: as
/// above.
Result<GenerationConfig> parse_generation_config(std::string_view text,
                                                 const ModelConfig& model,
                                                 std::vector<std::string>& warnings);

/// config.json of a model directory.
Result<ModelConfig> read_model_config(const std::filesystem::path& directory,
                                      std::vector<std::string>& warnings);

/// generation_config.json of a model directory; without one, what config.json says. Errors: also
/// invalid_argument when neither file has the key eos_token_id.
Result<GenerationConfig> read_generation_config(const std::filesystem::path& directory,
                                                const ModelConfig& model,
                                                std::vector<std::string>& warnings);

}  // namespace koho
