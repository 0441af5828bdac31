// SPDX-License-Identifier: Apache-2.0
#include "model/model_files.h"

#include <system_error>
#include <utility>

namespace koho {

Result<ModelFiles> open_model_files(const std::filesystem::path& directory) {
  std::error_code ignored;  // an unreadable directory is reported by the first file
  if (!std::filesystem::is_directory(directory, ignored))
    return make_error(ErrorCode::not_found, "{} is no directory", directory.string());
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(ModelConfig config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(GenerationConfig generation, read_generation_config(directory, config, warnings));
  KOHO_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  KOHO_TRY_ASSIGN(ResolvedWeights weights, resolve_weights(config, checkpoint));
  warnings.insert(warnings.end(), checkpoint.warnings().begin(), checkpoint.warnings().end());
  warnings.insert(warnings.end(), weights.warnings.begin(), weights.warnings.end());
  return ModelFiles{std::move(config), std::move(generation), std::move(checkpoint),
                    std::move(weights), std::move(warnings)};
}

}  // namespace koho
