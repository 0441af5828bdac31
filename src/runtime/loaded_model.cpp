// SPDX-License-Identifier: Apache-2.0
#include "runtime/loaded_model.h"

#include <chrono>

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

}  // namespace koho
