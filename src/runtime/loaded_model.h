// SPDX-License-Identifier: Apache-2.0
// A model directory, opened: config, stop tokens, weights (mapped). Text is another matter:
// runtime/loaded_text.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights.h"

namespace koho {

struct LoadedModel {
  ModelConfig config;
  GenerationConfig generation;
  std::unique_ptr<Checkpoint> checkpoint;  // owns the memory behind `sources`
  ModelSources sources;
  double load_s = 0.0;

  /// Ids that end an answer.
  const std::vector<std::int32_t>& stop_ids() const { return generation.eos_token_ids; }
};

/// Opens and validates everything. Warnings are logged. Errors: those of the files, each naming its
/// file.
Result<LoadedModel> load_model(const std::filesystem::path& directory);

}  // namespace koho
