// SPDX-License-Identifier: Apache-2.0
// Opens config, generation config and weights, or makes synthetic weights for a config alone.
#include "runtime/loaded_model.h"

#include <chrono>
#include <string>
#include <utility>

#include "base/log.h"

namespace koho {

Result<LoadedModel> load_model(const std::filesystem::path& directory) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
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
  return model;
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
