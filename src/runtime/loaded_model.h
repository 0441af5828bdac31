// SPDX-License-Identifier: Apache-2.0
// A model directory, opened: config, stop tokens, weights (mapped). Text is another matter:
// runtime/loaded_text.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/synthetic.h"
#include "model/weights.h"
#include "worker/device.h"

namespace koho {

/// Where a model came from, so that another process can open the same.
struct ModelOrigin {
  enum class Kind : std::uint8_t {
    none,                       // made in memory: nobody else can
    directory,                  // load_model
    directory_without_weights,  // load_model_without_weights
    config                      // load_synthetic_model
  };
  Kind kind = Kind::none;
  std::filesystem::path path{};
  std::int64_t layers = 0;  // of `config`: as load_synthetic_model has them
  std::string quant{};
};

struct LoadedModel {
  ModelOrigin origin;
  ModelConfig config;
  GenerationConfig generation;
  // One of these owns the memory behind `sources`.
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<DeviceSyntheticWeights>
      synthetic;  // random weights for a GPU (DeviceOptions::synthetic) …
  std::unique_ptr<HostSyntheticWeights> synthetic_host;  // … and for the CPU
  ModelSources sources;
  double load_s = 0.0;

  /// Ids that end an answer.
  const std::vector<std::int32_t>& stop_ids() const { return generation.eos_token_ids; }
};

/// Opens and validates everything. Warnings are logged. Errors: those of the files, each naming its
/// file.
Result<LoadedModel> load_model(const std::filesystem::path& directory);

/// The same with random weights: of the directory config.json and generation_config.json are read,
/// no tensor. Errors: as load_model, make_synthetic_model.
Result<LoadedModel> load_model_without_weights(const std::filesystem::path& directory,
                                               DeviceKind device);

/// The same for a config.json alone, `path`, with at most `layers` layers (0: all). `quant` is the
/// format of the weights where the config has none: "bf16", "fp8_channel" (and empty),
/// "fp8_tensor", "fp8_block". Errors: those of the file; invalid_argument (quant).
Result<LoadedModel> load_synthetic_model(const std::filesystem::path& path,
                                         std::int64_t layers,
                                         const std::string& quant,
                                         DeviceKind device);

/// Opens what `origin` names. Errors: as the function of its kind; unsupported (none).
Result<LoadedModel> open_model(const ModelOrigin& origin, DeviceKind device);

/// A model of random weights (model/synthetic.h), always the same, for a device. Errors:
/// resource_exhausted.
Result<LoadedModel> make_synthetic_model(ModelConfig config, DeviceKind device);

}  // namespace koho
