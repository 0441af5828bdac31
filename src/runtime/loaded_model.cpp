// SPDX-License-Identifier: Apache-2.0
// Opens config, generation config and weights, or makes synthetic weights for a config alone.
#include "runtime/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/mapped_file.h"

namespace koho {
namespace {

Result<WeightQuant> parse_quant(const std::string& name) {
  if (name.empty()) return WeightQuant::fp8_channel;
  if (name == "bf16") return WeightQuant::none;
  if (name == "fp8_channel") return WeightQuant::fp8_channel;
  if (name == "fp8_tensor") return WeightQuant::fp8_tensor;
  if (name == "fp8_block") return WeightQuant::fp8_block;
  return make_error(ErrorCode::invalid_argument,
                    "--quant must be bf16, fp8_channel, fp8_tensor or fp8_block, found \"{}\"",
                    name);
}

Result<ModelConfig> synthetic_config(const std::filesystem::path& path,
                                     std::int64_t layers,
                                     const std::string& quant_name) {
  constexpr std::uint64_t kConfigBytesMax = 1 << 20;
  KOHO_TRY_ASSIGN(const std::string text, read_file(path, kConfigBytesMax));
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(ModelConfig config, parse_model_config(text, warnings));
  if (layers > 0) config.num_hidden_layers = std::min(layers, config.num_hidden_layers);
  config.first_k_dense_replace = std::min(config.first_k_dense_replace, config.num_hidden_layers);
  if (config.quantization) return config;
  KOHO_TRY_ASSIGN(const WeightQuant quant, parse_quant(quant_name));
  if (quant != WeightQuant::none)
    config.quantization = QuantizationConfig{
        .method = "compressed-tensors", .schemes = {quant}, .ignored = {"lm_head"}};
  return config;
}

}  // namespace

Result<LoadedModel> load_model(const std::filesystem::path& directory) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  model.origin = {.kind = ModelOrigin::Kind::directory, .path = directory};
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(model.config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(model.generation, read_generation_config(directory, model.config, warnings));
  KOHO_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  model.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  KOHO_TRY_ASSIGN(ResolvedWeights weights, resolve_weights(model.config, *model.checkpoint));
  model.sources = std::move(weights.sources);
  for (const auto& list : {warnings, model.checkpoint->warnings(), weights.warnings})
    for (const std::string& warning : list) log::warning("{}", warning);
  model.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

Result<LoadedModel> load_model_without_weights(const std::filesystem::path& directory,
                                               DeviceKind device) {
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(ModelConfig config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(GenerationConfig generation, read_generation_config(directory, config, warnings));
  for (const std::string& warning : warnings) log::warning("{}", warning);
  KOHO_TRY_ASSIGN(LoadedModel model, make_synthetic_model(std::move(config), device));
  model.generation = std::move(generation);
  model.origin = {.kind = ModelOrigin::Kind::directory_without_weights, .path = directory};
  return model;
}

Result<LoadedModel> load_synthetic_model(const std::filesystem::path& path,
                                         std::int64_t layers,
                                         const std::string& quant,
                                         DeviceKind device) {
  KOHO_TRY_ASSIGN(ModelConfig config, synthetic_config(path, layers, quant));
  KOHO_TRY_ASSIGN(LoadedModel model, make_synthetic_model(std::move(config), device));
  model.origin = {
      .kind = ModelOrigin::Kind::config, .path = path, .layers = layers, .quant = quant};
  return model;
}

Result<LoadedModel> open_model(const ModelOrigin& origin, DeviceKind device) {
  switch (origin.kind) {
    case ModelOrigin::Kind::directory:
      return load_model(origin.path);
    case ModelOrigin::Kind::directory_without_weights:
      return load_model_without_weights(origin.path, device);
    case ModelOrigin::Kind::config:
      return load_synthetic_model(origin.path, origin.layers, origin.quant, device);
    case ModelOrigin::Kind::none:
      break;
  }
  return make_error(ErrorCode::unsupported,
                    "a model that was made in memory has no files that a worker could open");
}

Result<LoadedModel> make_synthetic_model(ModelConfig config, DeviceKind device) {
  constexpr std::uint64_t kSeed = 1;
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  model.config = std::move(config);
  if (device == DeviceKind::cuda) {
    KOHO_TRY_ASSIGN(model.synthetic, DeviceSyntheticWeights::make(model.config, kSeed));
    model.sources = model.synthetic->sources();
  } else {
    KOHO_TRY_ASSIGN(HostSyntheticWeights filled, HostSyntheticWeights::make(model.config, kSeed));
    model.synthetic_host = std::make_unique<HostSyntheticWeights>(std::move(filled));
    model.sources = model.synthetic_host->sources();
  }
  model.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace koho
