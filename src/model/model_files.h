// SPDX-License-Identifier: Apache-2.0
// A model directory, opened and validated whole: config.json, generation_config.json, the index,
// the shards, every tensor. What `koho check` calls good, everything else can load.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights.h"

namespace koho {

struct ModelFiles {
  ModelConfig config;
  GenerationConfig generation;
  Checkpoint checkpoint;  // owns the memory behind `weights`
  ResolvedWeights weights;
  std::vector<std::string> warnings;  // of all files
};

/// Errors: those of read_model_config, read_generation_config, Checkpoint::open and
/// resolve_weights, each naming its file; not_found if `directory` is none.
Result<ModelFiles> open_model_files(const std::filesystem::path& directory);

}  // namespace koho
