// SPDX-License-Identifier: Apache-2.0
// The flags with which `koho bench`, `batch` and `logits` choose a model directory, or a config
// with synthetic weights, and the device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "app/command_line.h"
#include "base/error.h"
#include "runtime/runtime.h"
#include "worker/device.h"

namespace koho::app {

inline constexpr const char* kThreadsHelp =
    "CPU threads; 0 or -1 = the cores that this process may use";

struct ModelFlags {
  std::string model;
  std::string config;
  std::string weights = "checkpoint";
  std::string quant;  // empty: fp8_channel
  std::string device = "auto";
  std::int64_t layers = 0;  // 0: all
  std::int64_t threads = 0;
  std::optional<bool> deterministic;
  bool portable = false;
};

/// A loaded model and the device for it.
struct SelectedModel {
  std::string name;  // the directory, or the config's file
  ModelConfig config;
  DeviceOptions device;
  LoadedModel model;

  const ModelSources& sources() const { return model.sources; }
};

/// Whether a word without a flag is the model; or the command has words of its own, and calls
/// take_model_word().
enum class ModelWord : std::uint8_t { of_flags, of_command };

void add_model_flags(CommandLine& command,
                     ModelFlags& options,
                     ModelWord word = ModelWord::of_flags);

/// " --name value", or nothing where the value is the default.
template <typename Value>
std::string flag_text(std::string_view name, const Value& value, const Value& usual) {
  return value == usual ? std::string() : fmt::format(" --{} {}", name, value);
}

/// " --name" or " --no-name", or nothing where neither was given.
std::string flag_text(std::string_view name, std::optional<bool> given);

/// The flags that give these options, each after a blank: reports print them to repeat a command.
std::string model_flags(const ModelFlags& options);

/// Errors: invalid_argument (flags); those of the files; resource_exhausted.
Result<SelectedModel> load_selected_model(const ModelFlags& options);

/// Starts the engine on the selected model and device; moves `selected.model` into it and loads the
/// directory's tokenizer if there is one. Errors: as Runtime::start.
Result<std::unique_ptr<Runtime>> start_runtime(SelectedModel& selected, RuntimeOptions options);

}  // namespace koho::app
