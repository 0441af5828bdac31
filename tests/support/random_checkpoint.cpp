// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_checkpoint.h"

#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/arithmetic.h"
#include "base/check.h"
#include "tensor/number.h"
#include "tensor/synthetic_values.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kScaleBlock = 128;

// ------------------------------------------------------------------------------------------ draws

std::vector<std::uint64_t> draw(std::uint64_t seed, std::string_view name, std::int64_t count) {
  const std::uint64_t key = synthetic::key(seed, name);
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(count));
  std::uint64_t index = 0;
  for (std::uint64_t& word : bits) word = synthetic::word(key, index++);
  return bits;
}

/// floor(256 / sqrt(width)).
std::int64_t inverse_root(std::int64_t width) {
  std::int64_t root = 0;
  while ((root + 1) * (root + 1) <= 65536 / width) ++root;
  return root;
}

/// integer * 2^exponent: one rounding to f32, then an exact scaling.
float scaled(std::int64_t integer, int exponent) {
  return std::ldexp(static_cast<float>(integer), exponent);
}

template <typename T>
void append(std::string& data, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  data.append(bytes.data(), sizeof(T));
}

// ---------------------------------------------------------------------------------------- tensors

/// The tensors of one checkpoint, in file order.
class Tensors {
 public:
  explicit Tensors(const RandomCheckpointSpec& spec) : spec_(spec) {}

  std::vector<TensorToWrite> list;

  /// Around 1, from 0 to 2; every 31st channel of the hidden state four times that.
  void norm(const std::string& name, std::int64_t width) {
    std::vector<std::int64_t> integers = bells(name, {width});
    for (std::size_t i = 0; i < integers.size(); ++i) {
      integers[i] += 1 << 17;
      if (width == spec_.hidden_size && i % 31 == 7) integers[i] *= 4;
    }
    add(name, "BF16", {width}, integers, -17);
  }

  void bias(const std::string& name, std::int64_t width) {
    add(name, "BF16", {width}, bells(name, {width}), -16);
  }

  /// Standard deviation about 1; every 29th channel six times that.
  void embedding(const std::string& name, std::int64_t rows, std::int64_t width) {
    std::vector<std::int64_t> integers = bells(name, {rows, width});
    for (std::size_t i = 0; i < integers.size(); ++i)
      if (i % static_cast<std::size_t>(width) % 29 == 5) integers[i] *= 6;
    add(name, "BF16", {rows, width}, integers, -15);
  }

  void correction_bias(const std::string& name, std::int64_t experts) {
    std::vector<std::int64_t> integers = bells(name, {experts});
    for (std::int64_t& integer : integers) integer += spec_.correction_bias_shift * (1 << 18);
    add(name, "F32", {experts}, integers, -18);
  }

  /// An unquantised matrix, standard deviation about gain / sqrt(columns).
  void plain(const std::string& module, std::int64_t rows, std::int64_t columns) {
    const std::string name = module + ".weight";
    std::vector<std::int64_t> integers = bells(name, {rows, columns});
    const std::int64_t factor = inverse_root(columns) * gain(module);
    for (std::int64_t& integer : integers) integer *= factor;
    add(name, "BF16", {rows, columns}, integers, -26);
  }

  void linear(const std::string& module, std::int64_t rows, std::int64_t columns) {
    const std::string scheme = scheme_of(module);
    if (scheme == "bf16") return plain(module, rows, columns);
    // E4M3 values have standard deviation 129 and reach ±448; scales bring the weight to that of
    // `plain`.
    const std::string name = module + ".weight";
    std::string quantized;
    for (const std::int64_t integer : bells(name, {rows, columns}))
      append(quantized, to_e4m3(scaled(integer * 7, -11)).bits);
    list.push_back({name, "F8_E4M3", {rows, columns}, std::move(quantized)});
    scales(module, scheme, rows, columns);
  }

  void mlp(const std::string& prefix, std::int64_t hidden, std::int64_t width) {
    linear(prefix + ".gate_proj", width, hidden);
    linear(prefix + ".up_proj", width, hidden);
    linear(prefix + ".down_proj", hidden, width);
  }

 private:
  std::vector<std::int64_t> bells(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> integers;
    for (const std::uint64_t bits : draw(spec_.seed, name, num_elements(shape)))
      integers.push_back(synthetic::bell(bits));
    return integers;
  }

  void add(const std::string& name,
           const std::string& dtype,
           std::vector<std::int64_t> shape,
           const std::vector<std::int64_t>& integers,
           int exponent) {
    std::string data;
    for (const std::int64_t integer : integers) {
      const float value = scaled(integer, exponent);
      if (dtype == "BF16")
        append(data, to_bf16(value).bits);
      else
        append(data, value);
    }
    list.push_back({name, dtype, std::move(shape), std::move(data)});
  }

  /// `scheme` is "kind_dtype_form".
  void scales(const std::string& module,
              const std::string& scheme,
              std::int64_t rows,
              std::int64_t columns) {
    const std::string form = scheme.substr(scheme.rfind('_') + 1);
    const std::map<std::string, std::vector<std::int64_t>> shapes{
        {"n1", {rows, 1}},
        {"n", {rows}},
        {"scalar", {}},
        {"one", {1}},
        {"block", {ceil_div(rows, kScaleBlock), ceil_div(columns, kScaleBlock)}},
        {"inv", {ceil_div(rows, kScaleBlock), ceil_div(columns, kScaleBlock)}}};
    const std::vector<std::int64_t>& shape = shapes.at(form);
    const std::string name = module + (form == "inv" ? ".weight_scale_inv" : ".weight_scale");
    constexpr std::array<unsigned, 4> kDoublings{1, 1, 0, 2};
    const std::int64_t factor = inverse_root(columns) * gain(module);
    std::vector<std::int64_t> integers;
    for (const std::uint64_t bits : draw(spec_.seed, name, num_elements(shape))) {
      const std::int64_t fraction = static_cast<std::int64_t>(bits & 0xFFFFU) + (1 << 15);
      integers.push_back((fraction << kDoublings[(bits >> 16U) & 3U]) * factor);
    }
    const bool is_bf16 = scheme.find("_bf16_") != std::string::npos;
    add(name, is_bf16 ? "BF16" : "F32", shape, integers, -35);
  }

  /// In eighths of 1/sqrt(columns), by the last part of the module's name.
  std::int64_t gain(const std::string& module) const {
    static const std::map<std::string, std::int64_t> kGains{{"lm_head", 16}, {"gate", 12},
                                                            {"q_proj", 5},   {"k_proj", 5},
                                                            {"o_proj", 8},   {"down_proj", 8}};
    const std::string part = module.substr(module.rfind('.') + 1);  // all of it without a dot
    for (const auto& gains : {spec_.gains, kGains})
      if (const auto found = gains.find(part); found != gains.end()) return found->second;
    return 10;
  }

  /// The first rule whose text occurs in the module's name decides.
  std::string scheme_of(const std::string& module) const {
    for (const auto& [text, scheme] : spec_.schemes)
      if (module.find(text) != std::string::npos) return scheme;
    return "bf16";
  }

  const RandomCheckpointSpec& spec_;
};

void decoder_layer(Tensors& tensors,
                   const RandomCheckpointSpec& spec,
                   std::int64_t index,
                   bool dense) {
  const std::string prefix = fmt::format("model.layers.{}", index);
  const std::int64_t hidden = spec.hidden_size;
  const std::int64_t query = spec.num_attention_heads * spec.head_dim;
  const std::int64_t key = spec.num_key_value_heads * spec.head_dim;
  tensors.norm(prefix + ".input_layernorm.weight", hidden);
  for (const auto& [projection, rows] :
       {std::pair{"q_proj", query}, std::pair{"k_proj", key}, std::pair{"v_proj", key}}) {
    const std::string module = fmt::format("{}.self_attn.{}", prefix, projection);
    tensors.linear(module, rows, hidden);
    if (spec.attention_bias) tensors.bias(module + ".bias", rows);
  }
  if (spec.use_qk_norm) {
    tensors.norm(prefix + ".self_attn.q_norm.weight", spec.head_dim);
    tensors.norm(prefix + ".self_attn.k_norm.weight", spec.head_dim);
  }
  tensors.linear(prefix + ".self_attn.o_proj", hidden, query);
  tensors.norm(prefix + ".post_attention_layernorm.weight", hidden);
  if (dense) return tensors.mlp(prefix + ".mlp", hidden, spec.intermediate_size);
  tensors.plain(prefix + ".mlp.gate", spec.n_routed_experts, hidden);
  tensors.correction_bias(prefix + ".mlp.gate.e_score_correction_bias", spec.n_routed_experts);
  for (std::int64_t expert = 0; expert < spec.n_routed_experts; ++expert)
    tensors.mlp(fmt::format("{}.mlp.experts.{}", prefix, expert), hidden,
                spec.moe_intermediate_size);
  tensors.mlp(prefix + ".mlp.shared_experts", hidden,
              spec.moe_intermediate_size * spec.n_shared_experts);
}

std::vector<TensorToWrite> make_tensors(const RandomCheckpointSpec& spec) {
  Tensors tensors(spec);
  tensors.embedding("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size);
  for (std::int64_t index = 0; index < spec.num_hidden_layers; ++index)
    decoder_layer(tensors, spec, index, index < spec.first_k_dense_replace);
  tensors.norm("model.norm.weight", spec.hidden_size);
  tensors.plain("lm_head", spec.vocab_size, spec.hidden_size);
  if (spec.num_nextn_predict_layers > 0) {
    const std::string prefix = fmt::format("model.layers.{}", spec.num_hidden_layers);
    tensors.norm(prefix + ".enorm.weight", spec.hidden_size);
    tensors.norm(prefix + ".hnorm.weight", spec.hidden_size);
    tensors.plain(prefix + ".eh_proj", spec.hidden_size, 2 * spec.hidden_size);
    if (spec.mtp_embeddings) {
      tensors.embedding(prefix + ".embed_tokens.weight", spec.vocab_size, spec.hidden_size);
      tensors.plain(prefix + ".shared_head.head", spec.vocab_size, spec.hidden_size);
    }
    tensors.norm(prefix + ".shared_head.norm.weight", spec.hidden_size);
    decoder_layer(tensors, spec, spec.num_hidden_layers, false);
  }
  return std::move(tensors.list);
}

// ------------------------------------------------------------------------------------------ files

/// What a quantiser would have written beside the tensors; empty for "none".
Json quantization_config(const std::string& kind) {
  if (kind == "none") return {};
  if (kind == "fp8")
    return {{"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"quant_method", "fp8"},
            {"weight_block_size", {128, 128}}};
  Json weights{{"dynamic", false},
               {"num_bits", 8},
               {"strategy", kind},
               {"symmetric", true},
               {"type", "float"}};
  Json inputs{{"dynamic", true},
              {"num_bits", 8},
              {"strategy", "token"},
              {"symmetric", true},
              {"type", "float"}};
  if (kind == "block") {
    weights["block_structure"] = {128, 128};
    inputs["group_size"] = 128;
    inputs["strategy"] = "group";
  }
  const Json group{{"input_activations", inputs}, {"targets", {"Linear"}}, {"weights", weights}};
  return {{"config_groups", {{"group_0", group}}},
          {"format", "float-quantized"},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

Json model_config(const Json& spec) {
  Json config{{"architectures", {"Glm4MoeForCausalLM"}},
              {"model_type", "glm4_moe"},
              {"attention_dropout", 0.0},
              {"eos_token_id", {1, 3, 5}},
              {"pad_token_id", 1},
              {"hidden_act", "silu"},
              {"initializer_range", 0.02},
              {"max_position_embeddings", 4096},
              {"rms_norm_eps", 0.00001},
              {"tie_word_embeddings", false},
              {"use_cache", true}};
  for (const char* key :
       {"attention_bias", "first_k_dense_replace", "head_dim", "hidden_size", "intermediate_size",
        "moe_intermediate_size", "n_group", "n_routed_experts", "n_shared_experts",
        "norm_topk_prob", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers",
        "num_key_value_heads", "num_nextn_predict_layers", "routed_scaling_factor", "topk_group",
        "use_qk_norm", "vocab_size"})
    config[key] = spec.at(key);
  const Json& theta = spec.at("rope_theta");
  const Json& partial = spec.at("partial_rotary_factor");
  if (spec.at("config_form") == "v5") {
    config["dtype"] = "bfloat16";
    config["transformers_version"] = "5.0.0";
    config["bos_token_id"] = nullptr;
    config["rope_parameters"] = {
        {"partial_rotary_factor", partial}, {"rope_theta", theta}, {"rope_type", "default"}};
  } else {
    config["torch_dtype"] = "bfloat16";
    config["transformers_version"] = "4.54.0";
    config["rope_theta"] = theta;
    config["rope_scaling"] = nullptr;
    config["partial_rotary_factor"] = partial;
  }
  if (Json quantization = quantization_config(spec.at("quantization")); !quantization.is_null())
    config["quantization_config"] = std::move(quantization);
  return config;
}

std::string config_text(const RandomCheckpointSpec& spec,
                        const std::vector<TensorToWrite>& tensors) {
  Json config = Json::parse(spec.config);
  const auto quantization = config.find("quantization_config");
  if (quantization != config.end() && (*quantization)["quant_method"] == "compressed-tensors") {
    Json ignored = Json::array();
    constexpr std::string_view kSuffix = ".weight";
    for (const TensorToWrite& tensor : tensors)
      if (tensor.name.ends_with(kSuffix) && tensor.dtype == "BF16" && tensor.shape.size() == 2)
        ignored.push_back(tensor.name.substr(0, tensor.name.size() - kSuffix.size()));
    (*quantization)["ignore"] = std::move(ignored);
  }
  return config.dump() + "\n";
}

RandomCheckpointSpec parse_spec(const Json& json) {
  RandomCheckpointSpec spec;
  spec.name = json.at("name");
  spec.seed = json.at("seed");
  spec.prompt_tokens = json.at("prompt_tokens");
  spec.shards = json.at("shards");
  spec.hidden_size = json.at("hidden_size");
  spec.intermediate_size = json.at("intermediate_size");
  spec.moe_intermediate_size = json.at("moe_intermediate_size");
  spec.num_hidden_layers = json.at("num_hidden_layers");
  spec.num_attention_heads = json.at("num_attention_heads");
  spec.num_key_value_heads = json.at("num_key_value_heads");
  spec.head_dim = json.at("head_dim");
  spec.vocab_size = json.at("vocab_size");
  spec.first_k_dense_replace = json.at("first_k_dense_replace");
  spec.n_routed_experts = json.at("n_routed_experts");
  spec.n_shared_experts = json.at("n_shared_experts");
  spec.num_nextn_predict_layers = json.at("num_nextn_predict_layers");
  spec.attention_bias = json.at("attention_bias");
  spec.use_qk_norm = json.at("use_qk_norm");
  spec.mtp_embeddings = json.at("mtp_embeddings");
  spec.correction_bias_shift = json.at("correction_bias_shift");
  spec.gains = json.at("gains").get<std::map<std::string, std::int64_t>>();
  spec.quantization = json.at("quantization");
  spec.schemes = json.at("schemes").get<std::vector<std::pair<std::string, std::string>>>();
  spec.config = model_config(json).dump();
  return spec;
}

}  // namespace

Result<std::vector<RandomCheckpointSpec>> parse_random_checkpoints(std::string_view json) {
  std::vector<RandomCheckpointSpec> specs;
  try {
    for (const Json& spec : Json::parse(json)) specs.push_back(parse_spec(spec));
  } catch (const Json::exception& error) {
    return make_error(ErrorCode::corrupt_data, "the list of random checkpoints: {}", error.what());
  }
  return specs;
}

std::map<std::string, std::string> random_checkpoint_files(const RandomCheckpointSpec& spec) {
  std::vector<TensorToWrite> tensors = make_tensors(spec);
  std::map<std::string, std::string> files;
  files["config.json"] = config_text(spec, tensors);
  if (spec.shards == 1) {
    files["model.safetensors"] = safetensors_file(tensors);
    return files;
  }
  const auto shards = static_cast<std::size_t>(spec.shards);
  std::vector<std::vector<TensorToWrite>> parts(shards);
  std::vector<IndexLine> lines;
  std::int64_t total_size = 0;
  const auto file_name = [&](std::size_t shard) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t shard = i * shards / tensors.size();
    lines.push_back({tensors[i].name, file_name(shard)});
    total_size += static_cast<std::int64_t>(tensors[i].data.size());
    parts[shard].push_back(std::move(tensors[i]));
  }
  for (std::size_t shard = 0; shard < shards; ++shard)
    files[file_name(shard)] = safetensors_file(parts[shard]);
  files["model.safetensors.index.json"] = safetensors_index(lines, total_size);
  return files;
}

void write_random_checkpoint(const std::filesystem::path& directory,
                             const RandomCheckpointSpec& spec) {
  for (const auto& [name, bytes] : random_checkpoint_files(spec))
    write_file(directory / name, bytes);
}

std::vector<std::int32_t> random_checkpoint_prompt(const RandomCheckpointSpec& spec) {
  std::vector<std::int32_t> ids;
  for (const std::uint64_t bits : draw(spec.seed, "prompt", spec.prompt_tokens))
    ids.push_back(static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(spec.vocab_size)));
  return ids;
}

}  // namespace koho::testing
