// SPDX-License-Identifier: Apache-2.0
#include "model/quantization_config.h"

#include <algorithm>

#include "base/printable.h"
#include "model/json_fields.h"

namespace koho {
namespace {

constexpr const char* kPlace = "config.json: quantization_config";

template <typename... Args>
Error refuse(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::unsupported,
                    "{}: {} is not supported; koho reads BF16 and FP8 E4M3 weights "
                    "with activations quantised as they come",
                    kPlace, fmt::format(format, std::forward<Args>(args)...));
}

/// [128, 128], or the same as "128x128".
bool is_block_of_128(const json::Value& value) {
  if (const std::string* text = value.string()) return *text == "128x128";
  const json::Value::Array* sizes = value.array();
  return sizes != nullptr && sizes->size() == 2 && (*sizes)[0].integer() == kQuantBlock &&
         (*sizes)[1].integer() == kQuantBlock;
}

Status read_ignored(JsonFields& fields, const char* key, QuantizationConfig& config) {
  const json::Value* ignored = fields.find(key);
  if (ignored == nullptr) return {};
  if (ignored->array() == nullptr) return fields.wrong(key, *ignored, "an array of module names");
  for (const json::Value& name : *ignored->array()) {
    if (name.string() == nullptr) return fields.wrong(key, name, "a module name in the array");
    config.ignored.push_back(*name.string());
  }
  return {};
}

/// 8-bit float, symmetric.
Status check_fp8(JsonFields& fields) {
  KOHO_TRY_ASSIGN(const json::Value* bits, fields.need("num_bits"));
  KOHO_TRY_ASSIGN(const json::Value* type, fields.need("type"));
  const bool is_float = type->string() != nullptr && *type->string() == "float";
  if (bits->integer() != 8 || !is_float)
    return refuse("{}: num_bits {}, type {}", fields.place(), describe_value(*bits),
                  describe_value(*type));
  const json::Value* symmetric = fields.find("symmetric");
  if (symmetric != nullptr && symmetric->boolean() != true)
    return refuse("{}: symmetric {}", fields.place(), describe_value(*symmetric));
  return {};
}

Result<WeightQuant> read_weight_scheme(const json::Value& weights, const std::string& place) {
  JsonFields fields(place, weights);
  KOHO_TRY(check_fp8(fields));
  if (const json::Value* dynamic = fields.find("dynamic");
      dynamic != nullptr && dynamic->boolean() != false)
    return refuse("{}: dynamic {}", place, describe_value(*dynamic));
  KOHO_TRY_ASSIGN(const std::string strategy, fields.text("strategy"));
  if (strategy == "channel") return WeightQuant::fp8_channel;
  if (strategy == "tensor") return WeightQuant::fp8_tensor;
  if (strategy != "block") return refuse("{}: strategy '{}'", place, printable(strategy));
  KOHO_TRY_ASSIGN(const json::Value* block, fields.need("block_structure"));
  if (!is_block_of_128(*block)) return refuse("{}: block_structure other than [128, 128]", place);
  return WeightQuant::fp8_block;
}

Status check_activations(const json::Value& activations,
                         const std::string& place,
                         WeightQuant weights) {
  JsonFields fields(place, activations);
  KOHO_TRY(check_fp8(fields));
  KOHO_TRY_ASSIGN(const json::Value* dynamic, fields.need("dynamic"));
  if (dynamic->boolean() != true)
    return refuse("{}: dynamic {} (static activation scales)", place, describe_value(*dynamic));
  KOHO_TRY_ASSIGN(const std::string strategy, fields.text("strategy"));
  const bool block = weights == WeightQuant::fp8_block;
  if (strategy != (block ? "group" : "token"))
    return refuse("{}: strategy '{}' with {} weights", place, printable(strategy),
                  block ? "block" : "channel or tensor");
  if (!block) return {};
  KOHO_TRY_ASSIGN(const json::Value* size, fields.need("group_size"));
  if (size->integer() != kQuantBlock)
    return refuse("{}: group_size {}", place, describe_value(*size));
  return {};
}

Status read_group(const json::Member& group, QuantizationConfig& config) {
  const std::string place = fmt::format("config_groups.{}", printable(group.name));
  if (group.value.object() == nullptr)
    return make_error(ErrorCode::invalid_argument, "{}: {} is {}; expected an object", kPlace,
                      place, describe_value(group.value));
  JsonFields fields(place, group.value);
  const json::Value* weights = fields.find("weights");
  if (weights == nullptr || weights->object() == nullptr)
    return refuse("{} without an object 'weights'", place);
  KOHO_TRY_ASSIGN(const WeightQuant scheme, read_weight_scheme(*weights, place + ".weights"));
  const json::Value* inputs = fields.find("input_activations");
  if (inputs == nullptr || inputs->object() == nullptr)
    return refuse("{} without an object 'input_activations' (BF16 activations over FP8 weights)",
                  place);
  KOHO_TRY(check_activations(*inputs, place + ".input_activations", scheme));
  if (fields.find("output_activations") != nullptr) return refuse("{}.output_activations", place);
  if (const json::Value* format = fields.find("format");
      format != nullptr && (format->string() == nullptr || *format->string() != "float-quantized"))
    return refuse("{}.format {}", place, describe_value(*format));
  if (std::find(config.schemes.begin(), config.schemes.end(), scheme) == config.schemes.end())
    config.schemes.push_back(scheme);
  return {};
}

Result<QuantizationConfig> read_compressed_tensors(JsonFields& fields) {
  QuantizationConfig config;
  config.method = "compressed-tensors";
  if (const json::Value* format = fields.find("format")) {
    const std::string* text = format->string();
    if (text == nullptr || (*text != "float-quantized" && *text != "naive-quantized"))
      return refuse("format {}", describe_value(*format));
  }
  if (const json::Value* cache = fields.find("kv_cache_scheme"))
    return refuse("kv_cache_scheme ({})", describe_value(*cache));
  if (const json::Value* sparsity = fields.find("sparsity_config")) {
    const json::Value* format = sparsity->find("format");
    const bool dense =
        sparsity->object() != nullptr &&
        (sparsity->object()->empty() ||
         (format != nullptr && format->string() != nullptr && *format->string() == "dense"));
    if (!dense) return refuse("sparsity_config");
  }
  KOHO_TRY_ASSIGN(const json::Value* groups, fields.need("config_groups"));
  if (groups->object() == nullptr || groups->object()->empty())
    return fields.wrong("config_groups", *groups, "an object with at least one group");
  for (const json::Member& group : *groups->object()) KOHO_TRY(read_group(group, config));
  KOHO_TRY(read_ignored(fields, "ignore", config));
  return config;
}

Result<QuantizationConfig> read_native_fp8(JsonFields& fields) {
  QuantizationConfig config;
  config.method = "fp8";
  KOHO_TRY_ASSIGN(const std::string activations, fields.text("activation_scheme"));
  if (activations != "dynamic")
    return refuse("activation_scheme '{}' (static activation scales)", printable(activations));
  if (const json::Value* format = fields.find("fmt");
      format != nullptr && (format->string() == nullptr || *format->string() != "e4m3"))
    return refuse("fmt {}", describe_value(*format));
  const json::Value* block = fields.find("weight_block_size");
  if (block != nullptr && !is_block_of_128(*block))
    return refuse("weight_block_size other than [128, 128]");
  config.schemes.push_back(block != nullptr ? WeightQuant::fp8_block : WeightQuant::fp8_tensor);
  KOHO_TRY(read_ignored(fields, "modules_to_not_convert", config));
  return config;
}

}  // namespace

Result<QuantizationConfig> parse_quantization_config(const json::Value& value) {
  if (value.object() == nullptr)
    return make_error(ErrorCode::invalid_argument, "{} is {}; expected an object", kPlace,
                      describe_value(value));
  JsonFields fields(kPlace, value);
  KOHO_TRY_ASSIGN(const std::string method, fields.text("quant_method"));
  if (method == "compressed-tensors") return read_compressed_tensors(fields);
  if (method == "fp8") return read_native_fp8(fields);
  return refuse("quant_method '{}'", printable(method));
}

}  // namespace koho
