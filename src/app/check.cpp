// SPDX-License-Identifier: Apache-2.0
// `koho check`: validates a model directory, every file and every tensor, and says in one line what
// is wrong or in a few what is there. Reads headers, not values, unless --values asks for them.
#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/units.h"
#include "base/clock.h"
#include "model/model_files.h"
#include "model/value_scan.h"

namespace koho::app {
namespace {

constexpr const char* kExamples =
    R"(Exit code 0 if the directory can be served, otherwise one error on standard error.

Examples:
  koho check --model models/tiny
  koho check --model /models/GLM-4.7-FP8 --values    reads every weight: NaN, infinity, bad scales
  koho check --model DIR --json)";

struct CheckOptions {
  std::string model;
  bool values = false;
  bool json = false;
};

void print_text(const CheckOptions& options, const ModelFiles& files) {
  const ModelConfig& config = files.config;
  const CheckpointStats& stats = files.checkpoint.stats();
  std::cout
      << options.model << ": good\n"
      << fmt::format(
             "  model     glm4_moe, {} layers ({} dense), hidden {}, {} experts, {} a token{}\n",
             config.num_hidden_layers, config.first_k_dense_replace, config.hidden_size,
             config.n_routed_experts, config.num_experts_per_tok,
             files.weights.sources.mtp ? ", MTP layer" : ", no MTP layer")
      << fmt::format("  files     {} mapped, {}\n", stats.num_files, bytes_text(stats.mapped_bytes))
      << fmt::format(
             "  tensors   {}, {}; {} copied because the file has them misaligned or narrower "
             "({})\n",
             stats.num_tensors, bytes_text(stats.tensor_bytes), stats.num_copied,
             bytes_text(stats.copied_bytes))
      << fmt::format("  linears   {}\n", quantisation_text(files.weights.linears));
  if (options.values)
    std::cout << "  values    all read: every number finite, no scale below zero\n";
  for (const std::string& warning : files.warnings) std::cout << "  warning   " << warning << '\n';
}

void print_json(const CheckOptions& options, const ModelFiles& files) {
  const CheckpointStats& stats = files.checkpoint.stats();
  nlohmann::ordered_json out{{"model", options.model},
                             {"good", true},
                             {"files", stats.num_files},
                             {"tensors", stats.num_tensors},
                             {"mapped_bytes", stats.mapped_bytes},
                             {"tensor_bytes", stats.tensor_bytes},
                             {"copied_tensors", stats.num_copied},
                             {"copied_bytes", stats.copied_bytes},
                             {"mtp", files.weights.sources.mtp.has_value()},
                             {"values_read", options.values},
                             {"warnings", files.warnings}};
  for (std::size_t i = 0; i < files.weights.linears.size(); ++i)
    out["linears"][quant_key(static_cast<WeightQuant>(i))] = files.weights.linears[i];
  std::cout << out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

Status run_check(const CheckOptions& options) {
  KOHO_TRY_ASSIGN(const ModelFiles files, open_model_files(options.model));
  if (options.values) KOHO_TRY(scan_values(files.checkpoint));
  if (options.json)
    print_json(options, files);
  else
    print_text(options, files);
  if (!std::cout.flush())
    return make_error(ErrorCode::io_error, "standard output could not be written");
  return {};
}

}  // namespace

Runner add_check(CLI::App& command) {
  const auto options = std::make_shared<CheckOptions>();
  command.add_option("--model", options->model, "Model directory")->type_name("DIR")->required();
  command.add_flag("--values", options->values, "Also read every value of every tensor");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(kExamples);
  return [options] { return run_check(*options); };
}

}  // namespace koho::app
