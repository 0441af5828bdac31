// SPDX-License-Identifier: Apache-2.0
// What `koho bench` measures: a model directory, or a config with synthetic weights, on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "app/command_line.h"
#include "base/error.h"
#include "model/synthetic.h"
#include "runtime/loaded_model.h"
#include "worker/device.h"

namespace koho::app {

struct SubjectOptions {
  std::string model;
  std::string config;
  std::string weights = "checkpoint";
  std::string quant = "fp8_channel";
  std::string device = "auto";
  std::int64_t layers = 0;  // 0: all
  std::int64_t threads = 0;
  bool deterministic = false;
};

/// The model and what owns its memory.
struct BenchSubject {
  ModelConfig config;
  DeviceOptions device;
  std::unique_ptr<LoadedModel> loaded;
  std::unique_ptr<DrawnWeights> drawn;
  std::unique_ptr<SyntheticWeights> filled;

  const ModelSources& sources() const {
    return drawn != nullptr    ? drawn->sources()
           : filled != nullptr ? filled->sources()
                               : loaded->sources;
  }
};

void add_subject_flags(CommandLine& command, SubjectOptions& options);

/// Errors: invalid_argument (flags); those of the files; resource_exhausted.
Result<BenchSubject> open_subject(const SubjectOptions& options);

}  // namespace koho::app
