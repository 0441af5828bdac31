// SPDX-License-Identifier: Apache-2.0
// What `koho bench` and `koho batch` run: a model directory, or a config with synthetic weights, on
// a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "app/command_line.h"
#include "base/error.h"
#include "model/synthetic.h"
#include "runtime/runtime.h"
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
struct Subject {
  std::string name;  // the directory, or the config's file
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
Result<Subject> open_subject(const SubjectOptions& options);

/// The subject under an engine, with the directory's tokenizer if it has one; `options.device` is
/// the subject's. Takes a loaded model over; synthetic weights stay the subject's, which must then
/// outlive the runtime. Errors: as Runtime::start.
Result<std::unique_ptr<Runtime>> start_runtime(Subject& subject, RuntimeOptions options);

}  // namespace koho::app
