// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "base/arithmetic.h"
#include "base/check.h"
#include "tensor/number.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

/// A number of [-1, 1) from 64 mixed bits (splitmix64's finaliser).
double uniform(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  z ^= z >> 31U;
  return static_cast<double>(z >> 11U) * 0x1.0p-52 - 1.0;
}

std::uint64_t name_seed(std::uint64_t seed, const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL ^ seed;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

template <typename T>
void append(std::string& data, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  data.append(bytes, sizeof(T));
}

/// Elements around `centre`, evenly within `amplitude`.
std::string random_data(const std::string& dtype,
                        std::int64_t count,
                        std::uint64_t seed,
                        double centre,
                        double amplitude) {
  std::string data;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value =
        static_cast<float>(centre + amplitude * uniform(seed, static_cast<std::uint64_t>(i)));
    if (dtype == "F32")
      append(data, value);
    else if (dtype == "BF16")
      append(data, to_bf16(value).bits);
    else if (dtype == "F8_E4M3")
      append(data, to_e4m3(value).bits);
    else
      KOHO_CHECK(false);
  }
  return data;
}

class TensorMaker {
 public:
  explicit TensorMaker(const CheckpointRecipe& recipe) : recipe_(recipe) {}

  void add(const std::string& name,
           const std::string& dtype,
           std::vector<std::int64_t> shape,
           double centre,
           double amplitude) {
    std::string data =
        random_data(dtype, num_elements(shape), name_seed(recipe_.seed, name), centre, amplitude);
    tensors.push_back({name, dtype, std::move(shape), std::move(data)});
  }

  void add(const ExpectedWeight& row) {
    const double amplitude = recipe_.amplitude;
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    switch (row.role) {
      case WeightRole::vector:
        add(row.name, "BF16", {row.shape[0]}, 1.0, amplitude);
        return;
      case WeightRole::correction_bias:
        add(row.name, "F32", {row.shape[0]}, 0.0, amplitude);
        return;
      case WeightRole::embedding:
      case WeightRole::router:
        add(row.name, "BF16", {row.shape[0], row.shape[1]}, 0.0, amplitude);
        return;
      case WeightRole::linear:
        break;
    }
    const WeightQuant quant = recipe_.quant ? recipe_.quant(row) : WeightQuant::none;
    const std::int64_t out = row.shape[0];
    const std::int64_t in = row.shape[1];
    if (row.bias) add(module + ".bias", "BF16", {out}, 0.0, amplitude);
    if (quant == WeightQuant::none) {
      add(row.name, "BF16", {out, in}, 0.0, amplitude);
      return;
    }
    add(row.name, "F8_E4M3", {out, in}, 0.0, 256.0);
    std::vector<std::int64_t> scale{1};
    if (quant == WeightQuant::fp8_channel)
      scale = recipe_.channel_scale_column ? std::vector<std::int64_t>{out, 1}
                                           : std::vector<std::int64_t>{out};
    if (quant == WeightQuant::fp8_block)
      scale = {ceil_div(out, kQuantBlock), ceil_div(in, kQuantBlock)};
    const bool inverse = recipe_.inverse_name && quant == WeightQuant::fp8_block;
    add(module + (inverse ? ".weight_scale_inv" : ".weight_scale"), recipe_.scale_dtype, scale,
        amplitude / 256.0, amplitude / 512.0);
  }

  /// The experts of one layer in transformers 5's two tensors.
  void add_fused(const std::string& prefix) {
    const ModelConfig& config = recipe_.config;
    add(prefix + "gate_up_proj", "BF16",
        {config.n_routed_experts, 2 * config.moe_intermediate_size, config.hidden_size}, 0.0,
        recipe_.amplitude);
    add(prefix + "down_proj", "BF16",
        {config.n_routed_experts, config.hidden_size, config.moe_intermediate_size}, 0.0,
        recipe_.amplitude);
  }

  std::vector<TensorToWrite> tensors;

 private:
  const CheckpointRecipe& recipe_;
};

}  // namespace

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 96;
  config.hidden_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.intermediate_size = 40;
  config.moe_intermediate_size = 12;
  config.n_routed_experts = 4;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 2;
  config.n_group = 1;
  config.topk_group = 1;
  config.first_k_dense_replace = 1;
  config.num_nextn_predict_layers = 1;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e6;
  config.partial_rotary_factor = 0.5;
  config.routed_scaling_factor = 2.5;
  config.attention_bias = true;
  config.use_qk_norm = true;
  config.norm_topk_prob = true;
  config.eos_token_ids = std::vector<std::int32_t>{90, 91};
  return config;
}

std::string config_json(const ModelConfig& config) {
  std::string text =
      R"({"architectures":["Glm4MoeForCausalLM"],"model_type":"glm4_moe","hidden_act":"silu",)"
      R"("tie_word_embeddings":false,"torch_dtype":"bfloat16","rope_scaling":null)";
  const auto add = [&text](const char* key, const auto& value) {
    text += fmt::format(R"(,"{}":{})", key, value);
  };
  add("vocab_size", config.vocab_size);
  add("hidden_size", config.hidden_size);
  add("num_hidden_layers", config.num_hidden_layers);
  add("num_attention_heads", config.num_attention_heads);
  add("num_key_value_heads", config.num_key_value_heads);
  add("head_dim", config.head_dim);
  add("intermediate_size", config.intermediate_size);
  add("moe_intermediate_size", config.moe_intermediate_size);
  add("n_routed_experts", config.n_routed_experts);
  add("n_shared_experts", config.n_shared_experts);
  add("num_experts_per_tok", config.num_experts_per_tok);
  add("n_group", config.n_group);
  add("topk_group", config.topk_group);
  add("first_k_dense_replace", config.first_k_dense_replace);
  add("num_nextn_predict_layers", config.num_nextn_predict_layers);
  add("max_position_embeddings", config.max_position_embeddings);
  add("rms_norm_eps", config.rms_norm_eps);
  add("rope_theta", config.rope_theta);
  add("partial_rotary_factor", config.partial_rotary_factor);
  add("routed_scaling_factor", config.routed_scaling_factor);
  add("attention_bias", config.attention_bias);
  add("use_qk_norm", config.use_qk_norm);
  add("norm_topk_prob", config.norm_topk_prob);
  if (config.eos_token_ids) {
    std::string ids;
    for (const std::int32_t id : *config.eos_token_ids)
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
    add("eos_token_id", "[" + ids + "]");
  }
  return text + "}";
}

std::vector<TensorToWrite> random_tensors(const CheckpointRecipe& recipe) {
  TensorMaker maker(recipe);
  for (const ExpectedWeight& row : expected_weights(recipe.config, recipe.with_mtp)) {
    if (row.optional && !recipe.own_mtp_embedding) continue;
    if (row.routed && recipe.fused_experts) {
      const std::size_t experts = row.name.find("experts.") + std::string("experts.").size();
      if (row.name.substr(experts) == "0.gate_proj.weight")
        maker.add_fused(row.name.substr(0, experts));
      continue;
    }
    maker.add(row);
  }
  return std::move(maker.tensors);
}

void write_tensors(const std::filesystem::path& directory,
                   const std::vector<TensorToWrite>& tensors,
                   int num_shards,
                   std::size_t data_offset) {
  if (num_shards == 0) {
    write_file(directory / "model.safetensors", safetensors_file(tensors, data_offset));
    return;
  }
  const auto shards = static_cast<std::size_t>(num_shards);
  std::vector<IndexLine> lines;
  std::int64_t total_size = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::size_t begin = tensors.size() * shard / shards;
    const std::size_t end = tensors.size() * (shard + 1) / shards;
    const std::span part(tensors.data() + begin, end - begin);
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    for (const TensorToWrite& tensor : part) {
      lines.push_back({tensor.name, file});
      total_size += static_cast<std::int64_t>(tensor.data.size());
    }
    write_file(directory / file, safetensors_file(part, data_offset));
  }
  write_file(directory / "model.safetensors.index.json", safetensors_index(lines, total_size));
}

void write_checkpoint(const std::filesystem::path& directory,
                      const CheckpointRecipe& recipe,
                      int num_shards) {
  write_file(directory / "config.json", config_json(recipe.config));
  write_file(directory / "generation_config.json", R"({"eos_token_id":[90,91],"temperature":1.0})");
  write_tensors(directory, random_tensors(recipe), num_shards);
}

}  // namespace koho::testing
