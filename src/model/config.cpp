// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "model/json_fields.h"
#include "sampling/parameter_table.h"

namespace koho {
namespace {

constexpr std::size_t kConfigBytesMax = 8U << 20U;  // an ignore list of 45,000 modules takes 3 MB
constexpr std::size_t kUnknownKeysNamed = 20;       // in warnings
constexpr const char* kConfigName = "config.json";
constexpr const char* kGenerationName = "generation_config.json";

/// An integer of the model. The upper bounds are a few times the largest model known; with them a
/// model has fewer than 2^55 parameters and 2^34 cache bytes a token, so that no product of sizes
/// leaves 64 bits.
struct IntegerKey {
  const char* key;
  std::int64_t ModelConfig::*field;
  std::int64_t least;
  std::int64_t most;
};

constexpr std::int64_t k1 = 1;
constexpr std::array<IntegerKey, 16> kIntegers{{
    {"vocab_size", &ModelConfig::vocab_size, 1, k1 << 24},
    {"hidden_size", &ModelConfig::hidden_size, 1, k1 << 16},
    {"num_hidden_layers", &ModelConfig::num_hidden_layers, 1, k1 << 10},
    {"num_attention_heads", &ModelConfig::num_attention_heads, 1, k1 << 10},
    {"num_key_value_heads", &ModelConfig::num_key_value_heads, 1, k1 << 10},
    {"head_dim", &ModelConfig::head_dim, 2, k1 << 10},
    {"intermediate_size", &ModelConfig::intermediate_size, 1, k1 << 20},
    {"moe_intermediate_size", &ModelConfig::moe_intermediate_size, 1, k1 << 18},
    {"n_routed_experts", &ModelConfig::n_routed_experts, 1, k1 << 12},
    {"n_shared_experts", &ModelConfig::n_shared_experts, 1, 64},
    {"num_experts_per_tok", &ModelConfig::num_experts_per_tok, 1, k1 << 12},
    {"n_group", &ModelConfig::n_group, 1, k1 << 12},
    {"topk_group", &ModelConfig::topk_group, 1, k1 << 12},
    {"first_k_dense_replace", &ModelConfig::first_k_dense_replace, 0, k1 << 10},
    {"num_nextn_predict_layers", &ModelConfig::num_nextn_predict_layers, 0, 1},
    {"max_position_embeddings", &ModelConfig::max_position_embeddings, 1,
     k1 << 24},  // exact in f32
}};
constexpr std::int64_t kExpertsOfAllLayersMax = k1 << 18;  // GLM-4.7 has 14,240

/// Keys of variants that koho does not have: fine when absent, null, false, 0 or empty.
struct RefusedKey {
  const char* key;
  const char* means;
};

constexpr std::array<RefusedKey, 31> kRefused{{
    {"sliding_window", "sliding-window attention"},
    {"use_sliding_window", "sliding-window attention"},
    {"max_window_layers", "sliding-window attention"},
    {"attention_chunk_size", "chunked attention"},
    {"attention_sinks", "attention sinks"},
    {"attention_sink", "attention sinks"},
    {"use_attention_sinks", "attention sinks"},
    {"add_attention_sink_bias", "attention sinks"},
    {"add_full_attention_sink_bias", "attention sinks"},
    {"add_swa_attention_sink_bias", "attention sinks"},
    {"attn_output_gate", "gated attention"},
    {"use_alibi", "ALiBi positions"},
    {"alibi", "ALiBi positions"},
    {"q_lora_rank", "latent attention"},
    {"kv_lora_rank", "latent attention"},
    {"qk_rope_head_dim", "latent attention"},
    {"index_topk", "sparse attention"},
    {"index_n_heads", "sparse attention"},
    {"linear_num_key_heads", "linear attention"},
    {"linear_num_value_heads", "linear attention"},
    {"attn_logit_softcapping", "capped attention logits"},
    {"final_logit_softcapping", "capped logits"},
    {"logit_scale", "scaled logits"},
    {"attention_multiplier", "another attention scale"},
    {"query_pre_attn_scalar", "another attention scale"},
    {"residual_multiplier", "scaled residuals"},
    {"embedding_multiplier", "scaled embeddings"},
    {"mlp_bias", "biases in the MLP"},
    {"mrope_section", "multimodal RoPE"},
    {"rope_interleave", "interleaved RoPE"},
    {"vision_config", "images"},
}};

/// Keys that say nothing koho needs.
constexpr std::array<const char*, 17> kIgnored{"attention_dropout",    "auto_map",
                                               "bos_token_id",         "chunk_size_feed_forward",
                                               "initializer_range",    "name_or_path",
                                               "_name_or_path",        "output_attentions",
                                               "output_hidden_states", "output_router_logits",
                                               "pad_token_id",         "return_dict",
                                               "router_aux_loss_coef", "sep_token_id",
                                               "transformers_version", "use_cache",
                                               "use_return_dict"};

constexpr std::array<const char*, 6> kIgnoredInGeneration{"_from_model_config",     "bos_token_id",
                                                          "decoder_start_token_id", "pad_token_id",
                                                          "transformers_version",   "use_cache"};

template <typename... Args>
Error refuse(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::unsupported, "{}: {}", kConfigName,
                    fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Error contradiction(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::invalid_argument, "{}: {}", kConfigName,
                    fmt::format(format, std::forward<Args>(args)...));
}

bool says_nothing(const json::Value& value) {
  return value.is_null() || value.boolean() == false || value.number() == 0.0 ||
         (value.array() != nullptr && value.array()->empty()) ||
         (value.object() != nullptr && value.object()->empty());
}

/// The key, if there, must be the string `only`.
Status only_text(JsonFields& fields, const char* key, std::string_view only) {
  const json::Value* value = fields.find(key);
  if (value == nullptr || (value->string() != nullptr && *value->string() == only)) return {};
  return refuse("'{}' is {}; koho supports only '{}'", key, describe_value(*value), only);
}

Status check_family(JsonFields& fields) {
  KOHO_TRY_ASSIGN(const std::string type, fields.text("model_type"));
  if (type != "glm4_moe")
    return refuse(
        "model_type '{}' is not supported; koho serves glm4_moe (GLM-4.5, 4.5-Air, 4.6, 4.7)",
        printable(type));
  KOHO_TRY_ASSIGN(const json::Value* names, fields.need("architectures"));
  const json::Value::Array* array = names->array();
  if (array == nullptr || array->size() != 1 || (*array)[0].string() == nullptr)
    return fields.wrong("architectures", *names, "an array of one name");
  if (*(*array)[0].string() != "Glm4MoeForCausalLM")
    return refuse("architectures ['{}'] is not supported; koho serves Glm4MoeForCausalLM",
                  printable(*(*array)[0].string()));
  return {};
}

Status check_variants(JsonFields& fields) {
  KOHO_TRY_ASSIGN(const std::string activation, fields.text("hidden_act"));
  if (activation != "silu")
    return refuse("hidden_act '{}' is not supported; koho computes silu", printable(activation));
  KOHO_TRY_ASSIGN(const bool tied, fields.boolean("tie_word_embeddings"));
  if (tied)
    return refuse("tie_word_embeddings true is not supported: the head must have its own weights");
  for (const RefusedKey& row : kRefused)
    if (const json::Value* value = fields.find(row.key); value != nullptr && !says_nothing(*value))
      return refuse("'{}' ({}) is not supported: found {}", row.key, row.means,
                    describe_value(*value));
  KOHO_TRY(only_text(fields, "scoring_func", "sigmoid"));
  KOHO_TRY(only_text(fields, "topk_method", "noaux_tc"));
  if (const json::Value* every = fields.find("moe_layer_freq");
      every != nullptr && every->integer() != 1)
    return refuse("'moe_layer_freq' is {}; koho supports only 1", describe_value(*every));
  if (const json::Value* types = fields.find("layer_types")) {
    if (types->array() == nullptr) return fields.wrong("layer_types", *types, "an array of names");
    for (const json::Value& type : *types->array())
      if (type.string() == nullptr || *type.string() != "full_attention")
        return refuse("'layer_types' holds {}; koho has only full_attention", describe_value(type));
  }
  return {};
}

/// transformers v5 writes dtype, v4 torch_dtype; both at once must agree.
Status check_dtype(JsonFields& fields) {
  const json::Value* now = fields.find("dtype");
  const json::Value* before = fields.find("torch_dtype");
  if (now == nullptr && before == nullptr)
    return contradiction("the key 'dtype' (or 'torch_dtype') is missing (koho assumes no default)");
  for (const json::Value* value : {now, before}) {
    if (value == nullptr) continue;
    const char* key = value == now ? "dtype" : "torch_dtype";
    if (value->string() == nullptr) return fields.wrong(key, *value, "'bfloat16'");
    if (*value->string() != "bfloat16")
      return refuse(
          "'{}' is '{}'; koho supports only bfloat16 (with FP8 weights where they are so)", key,
          printable(*value->string()));
  }
  return {};
}

/// A number that may stand in two places, which must agree.
Result<std::optional<double>> number_in(JsonFields* inner,
                                        JsonFields& outer,
                                        const char* key,
                                        double most) {
  std::optional<double> found;
  for (JsonFields* fields : {inner, &outer}) {
    if (fields == nullptr || fields->find(key) == nullptr) continue;
    KOHO_TRY_ASSIGN(const double value, fields->number_above(key, 0.0, most));
    if (found && *found != value)
      return contradiction("'{}' is {} in {}, but {} at the top", key, *found, inner->place(),
                           value);
    found = value;
  }
  return found;
}

/// rope_parameters (transformers v5) or rope_theta, rope_scaling, partial_rotary_factor (v4).
Status read_rope(JsonFields& fields, ModelConfig& config) {
  std::optional<JsonFields> inner;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json::Value* value = fields.find(key);
    if (value == nullptr) continue;
    if (value->object() == nullptr) return fields.wrong(key, *value, "an object or null");
    inner.emplace(fmt::format("{}: {}", kConfigName, key), *value);
    for (const char* name : {"rope_type", "type"})
      if (const json::Value* type = inner->find(name);
          type != nullptr && (type->string() == nullptr || *type->string() != "default"))
        return refuse("{}.{} is {}; koho supports only 'default' (no scaling)", key, name,
                      describe_value(*type));
    inner->find("rope_theta");
    inner->find("partial_rotary_factor");
    if (const std::vector<std::string> unread = inner->unread(); !unread.empty())
      return refuse("{}.{} is not supported", key, printable(unread.front()));
  }
  // The v5 dict is read last, so `inner` is it where both stand.
  JsonFields* dict = inner ? &*inner : nullptr;
  KOHO_TRY_ASSIGN(const std::optional<double> theta, number_in(dict, fields, "rope_theta", 1e15));
  if (!theta)
    return contradiction(
        "the key 'rope_theta' is missing, at the top and in rope_parameters (koho assumes no "
        "default)");
  KOHO_TRY_ASSIGN(const std::optional<double> factor,
                  number_in(dict, fields, "partial_rotary_factor", 1.0));
  config.rope_theta = *theta;
  config.partial_rotary_factor = factor.value_or(0.5);  // as vLLM and llama.cpp read GLM's files
  const std::int64_t rotary = config.rotary_dim();
  if (rotary < 2 || rotary % 2 != 0)
    return contradiction(
        "partial_rotary_factor {} of head_dim {} turns {} dims; expected an even number of at "
        "least 2",
        config.partial_rotary_factor, config.head_dim, rotary);
  return {};
}

/// How the numbers must agree.
Status check_relations(const ModelConfig& config) {
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    return contradiction("num_attention_heads {} is no multiple of num_key_value_heads {}",
                         config.num_attention_heads, config.num_key_value_heads);
  const std::int64_t experts = config.n_routed_experts;
  if (experts * config.num_hidden_layers > kExpertsOfAllLayersMax)
    return contradiction("n_routed_experts {} times num_hidden_layers {} is more than {}", experts,
                         config.num_hidden_layers, kExpertsOfAllLayersMax);
  if (config.first_k_dense_replace > config.num_hidden_layers)
    return contradiction("first_k_dense_replace {} is more than num_hidden_layers {}",
                         config.first_k_dense_replace, config.num_hidden_layers);
  if (config.num_experts_per_tok > experts)
    return contradiction("num_experts_per_tok {} is more than n_routed_experts {}",
                         config.num_experts_per_tok, experts);
  if (experts % config.n_group != 0)
    return contradiction("n_routed_experts {} is no multiple of n_group {}", experts,
                         config.n_group);
  if (config.topk_group > config.n_group)
    return contradiction("topk_group {} is more than n_group {}", config.topk_group,
                         config.n_group);
  const std::int64_t group = experts / config.n_group;
  if (config.n_group > 1 && group < 2)
    return contradiction("n_group {} leaves one expert a group; a group is scored by its best two",
                         config.n_group);
  if (config.num_experts_per_tok > group * config.topk_group)
    return contradiction(
        "num_experts_per_tok {} is more than topk_group {} groups of {} experts hold",
        config.num_experts_per_tok, config.topk_group, group);
  return {};
}

/// transformers v5 may say of every layer what first_k_dense_replace says of all.
Status check_mlp_types(JsonFields& fields, const ModelConfig& config) {
  constexpr const char* kKey = "mlp_layer_types";
  const json::Value* types = fields.find(kKey);
  if (types == nullptr) return {};
  const json::Value::Array* array = types->array();
  if (array == nullptr || std::ssize(*array) != config.num_hidden_layers)
    return fields.wrong(kKey, *types,
                        fmt::format("an array of {} names, one a layer", config.num_hidden_layers));
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const json::Value& type = (*array)[static_cast<std::size_t>(layer)];
    const std::string_view expected = config.is_moe(layer) ? "sparse" : "dense";
    if (type.string() == nullptr || *type.string() != expected)
      return contradiction("'{}' has {} for layer {}; first_k_dense_replace {} makes it '{}'", kKey,
                           describe_value(type), layer, config.first_k_dense_replace, expected);
  }
  return {};
}

/// An id or an array of ids, of the vocabulary. nullptr: none.
Result<std::vector<std::int32_t>> read_token_ids(const JsonFields& fields,
                                                 const char* key,
                                                 const json::Value* value,
                                                 std::int64_t vocab_size) {
  std::vector<std::int32_t> ids;
  if (value == nullptr || value->is_null()) return ids;
  const std::span<const json::Value> all = value->array() != nullptr
                                               ? std::span<const json::Value>(*value->array())
                                               : std::span<const json::Value>(value, 1);
  for (const json::Value& id : all) {
    const std::optional<std::int64_t> number = id.integer();
    if (!number || *number < 0 || *number >= vocab_size)
      return fields.wrong(
          key, id, fmt::format("a token id from 0 to {}, or an array of them", vocab_size - 1));
    ids.push_back(static_cast<std::int32_t>(*number));
  }
  return ids;
}

Result<std::optional<std::vector<std::int32_t>>> read_eos(JsonFields& fields,
                                                          std::int64_t vocab_size) {
  constexpr const char* kKey = "eos_token_id";
  Result<const json::Value*> there = fields.need(kKey);
  if (!there.ok()) return std::optional<std::vector<std::int32_t>>{};
  KOHO_TRY_ASSIGN(std::vector<std::int32_t> ids, read_token_ids(fields, kKey, *there, vocab_size));
  return std::optional(std::move(ids));
}

Result<json::Value> parse_object(std::string_view text, const char* file) {
  Result<json::Value> value = json::parse(text);
  if (!value.ok()) return std::move(value).error().with_context(file);
  if (value->object() == nullptr)
    return make_error(ErrorCode::corrupt_data, "{} holds {}; expected an object", file,
                      describe_value(*value));
  return value;
}

void warn_of_unread(const JsonFields& fields, std::vector<std::string>& warnings) {
  const std::vector<std::string> unknown = fields.unread();
  for (std::size_t i = 0; i < std::min(unknown.size(), kUnknownKeysNamed); ++i)
    warnings.push_back(fmt::format("{}: koho does not know the key '{}' and ignores it",
                                   fields.place(), printable(unknown[i])));
  if (unknown.size() > kUnknownKeysNamed)
    warnings.push_back(fmt::format("{}: and {} more unknown keys", fields.place(),
                                   unknown.size() - kUnknownKeysNamed));
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::vector<std::string>& warnings) {
  KOHO_TRY_ASSIGN(const json::Value root, parse_object(text, kConfigName));
  JsonFields fields(kConfigName, root);
  KOHO_TRY(check_family(fields));
  KOHO_TRY(check_variants(fields));
  KOHO_TRY(check_dtype(fields));
  ModelConfig config;
  for (const IntegerKey& row : kIntegers) {
    KOHO_TRY_ASSIGN(config.*row.field, fields.integer(row.key, row.least, row.most));
  }
  KOHO_TRY_ASSIGN(config.rms_norm_eps, fields.number_above("rms_norm_eps", 0.0, 1.0));
  KOHO_TRY_ASSIGN(config.routed_scaling_factor,
                  fields.number_above("routed_scaling_factor", 0.0, 1e6));
  KOHO_TRY_ASSIGN(config.attention_bias, fields.boolean("attention_bias"));
  KOHO_TRY_ASSIGN(config.use_qk_norm, fields.boolean("use_qk_norm"));
  KOHO_TRY_ASSIGN(config.norm_topk_prob, fields.boolean("norm_topk_prob"));
  KOHO_TRY(read_rope(fields, config));
  KOHO_TRY(check_relations(config));
  KOHO_TRY(check_mlp_types(fields, config));
  KOHO_TRY_ASSIGN(config.eos_token_ids, read_eos(fields, config.vocab_size));
  if (const json::Value* quantization = fields.find("quantization_config")) {
    KOHO_TRY_ASSIGN(config.quantization, parse_quantization_config(*quantization));
  }
  for (const char* key : kIgnored) fields.find(key);
  warn_of_unread(fields, warnings);
  return config;
}

Result<GenerationConfig> parse_generation_config(std::string_view text,
                                                 const ModelConfig& model,
                                                 std::vector<std::string>& warnings) {
  KOHO_TRY_ASSIGN(const json::Value root, parse_object(text, kGenerationName));
  JsonFields fields(kGenerationName, root);
  GenerationConfig generation;
  KOHO_TRY_ASSIGN(std::optional<std::vector<std::int32_t>> eos, read_eos(fields, model.vocab_size));
  if (!eos || eos->empty()) eos = model.eos_token_ids ? model.eos_token_ids : eos;
  if (!eos)
    return make_error(ErrorCode::invalid_argument, "neither {} nor {} has the key 'eos_token_id'",
                      kGenerationName, kConfigName);
  generation.eos_token_ids = std::move(*eos);
  // The table that holds requests to their ranges holds the model's advice to them, too.
  for (const SamplingParameter& row : kSamplingParameters) {
    const std::string key(row.name);
    const json::Value* value = row.advised ? fields.find(key.c_str()) : nullptr;
    if (value == nullptr) continue;
    if (row.integer != nullptr) {
      KOHO_TRY_ASSIGN(generation.sampling.*row.integer,
                      fields.integer(key.c_str(), std::numeric_limits<std::int32_t>::min(),
                                     std::numeric_limits<std::int32_t>::max()));
      continue;
    }
    const std::optional<double> number = value->number();
    if (!number) return fields.wrong(key.c_str(), *value, "a number");
    generation.sampling.*row.number = *number;
  }
  if (Status good = validate(generation.sampling, model.vocab_size); !good.ok())
    return std::move(good).error().with_context(kGenerationName);
  if (fields.find("do_sample") != nullptr) {
    KOHO_TRY_ASSIGN(generation.do_sample, fields.boolean("do_sample"));
  }
  for (const char* key : kIgnoredInGeneration) fields.find(key);
  warn_of_unread(fields, warnings);
  return generation;
}

Result<ModelConfig> read_model_config(const std::filesystem::path& directory,
                                      std::vector<std::string>& warnings) {
  KOHO_TRY_ASSIGN(const std::string text, read_file(directory / kConfigName, kConfigBytesMax));
  Result<ModelConfig> config = parse_model_config(text, warnings);
  if (!config.ok()) return std::move(config).error().with_context(directory.string());
  return config;
}

Result<GenerationConfig> read_generation_config(const std::filesystem::path& directory,
                                                const ModelConfig& model,
                                                std::vector<std::string>& warnings) {
  Result<std::string> text = read_file(directory / kGenerationName, kConfigBytesMax);
  if (!text.ok() && text.error().code != ErrorCode::not_found) return std::move(text).error();
  Result<GenerationConfig> generation =
      parse_generation_config(text.ok() ? std::string_view(*text) : "{}", model, warnings);
  if (!generation.ok()) return std::move(generation).error().with_context(directory.string());
  if (generation->eos_token_ids.empty())
    warnings.push_back(
        "the model has no stop token (eos_token_id is null or empty): answers end by their length "
        "only");
  return generation;
}

}  // namespace koho
