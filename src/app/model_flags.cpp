// SPDX-License-Identifier: Apache-2.0
#include "app/model_flags.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "app/load_bar.h"
#include "app/model_directory.h"
#include "app/rank_flags.h"
#include "base/mapped_file.h"

namespace koho::app {
namespace {

/// Refuses the flags of synthetic weights where a checkpoint is loaded.
Status check_nothing_synthetic(const ModelFlags& options) {
  const ModelFlags usual;
  for (const auto& [flag, given] : {std::pair("--config", options.config != usual.config),
                                    std::pair("--layers", options.layers != usual.layers),
                                    std::pair("--quant", options.quant != usual.quant)})
    if (given)
      return make_error(ErrorCode::invalid_argument,
                        "{} needs --weights synthetic: give both, or leave it out", flag);
  return {};
}

}  // namespace

std::string flag_text(std::string_view name, std::optional<bool> given) {
  return given ? fmt::format(" --{}{}", *given ? "" : "no-", name) : std::string();
}

std::string model_flags(const ModelFlags& options) {
  const ModelFlags usual;
  std::string text = flag_text("model", options.model, usual.model) +
                     flag_text("config", options.config, usual.config) +
                     flag_text("weights", options.weights, usual.weights) +
                     flag_text("quant", options.quant, usual.quant) +
                     flag_text("device", options.device, usual.device) +
                     flag_text("layers", options.layers, usual.layers) +
                     flag_text("threads", options.threads, usual.threads);
  text += flag_text("deterministic", options.deterministic);
  if (options.portable) text += " --portable";
  return text;
}

Result<SelectedModel> load_selected_model(const ModelFlags& options) {
  SelectedModel selected;
  selected.name = options.weights == "checkpoint" ? options.model : options.config;
  KOHO_TRY_ASSIGN(selected.device.kind, choose_device(options.device));
  selected.device.threads = options.threads;
  selected.device.deterministic = options.deterministic;
  selected.device.portable_only = options.portable;
  if (options.weights == "checkpoint") {
    KOHO_TRY(check_nothing_synthetic(options));
    if (options.model.empty())
      return make_error(
          ErrorCode::invalid_argument,
          "the model is missing: give its directory, or --config FILE with --weights synthetic");
    KOHO_TRY_ASSIGN(selected.name, find_model(options.model));
    KOHO_TRY_ASSIGN(selected.model, load_model(selected.name));
  } else if (options.weights == "synthetic" && !options.config.empty()) {
    KOHO_TRY_ASSIGN(selected.model, load_synthetic_model(options.config, options.layers,
                                                         options.quant, selected.device.kind));
  } else {
    return make_error(ErrorCode::invalid_argument,
                      "--weights must be checkpoint, or synthetic with --config");
  }
  selected.config = selected.model.config;
  selected.device.synthetic = selected.model.synthetic.get();
  return selected;
}

Result<std::unique_ptr<Runtime>> start_runtime(SelectedModel& selected, RuntimeOptions options) {
  std::vector<int> devices = std::move(options.device.devices);
  LoadBar bar;
  selected.device.progress = bar.progress();
  options.device = selected.device;
  options.device.devices = std::move(devices);
  KOHO_TRY(choose_ranks_and_log(selected.model, options));
  std::optional<LoadedText> text;
  if (has_tokenizer(selected.name)) {
    KOHO_TRY_ASSIGN(text, load_text(selected.name, options.chat_template));
  }
  return Runtime::start(std::move(selected.model), std::move(text), options);
}

void add_model_flags(CommandLine& command, ModelFlags& options, ModelWord word) {
  command
      .add_option(word == ModelWord::of_flags ? "-m,--model,MODEL" : "-m,--model", options.model,
                  "Model directory, or a name in Hugging Face's cache")
      ->type_name("DIR");
  command.add_option("--config", options.config,
                     "config.json of the model, with --weights synthetic");
  command.add_option("--weights", options.weights, "checkpoint or synthetic")
      ->capture_default_str();
  command.add_option(
      "--quant", options.quant,
      "Format of synthetic weights where the config has none: bf16, fp8_channel (default), "
      "fp8_tensor or fp8_block");
  command
      .add_option("--layers", options.layers, "With synthetic weights: number of layers; 0 = all")
      ->check(at_least(0));
  command.add_option("--device", options.device, "auto, cpu or cuda")->capture_default_str();
  command.add_option("--threads", options.threads, kThreadsHelp)->check(at_least(-1));
  command.add_flag("--deterministic,!--no-deterministic", options.deterministic,
                   "Results do not depend on the batch (CUDA; the default on Hopper)");
  command.add_flag("--portable", options.portable,
                   "The kernels that every GPU runs, none of Hopper's own (CUDA)");
}

}  // namespace koho::app
