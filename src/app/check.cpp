// SPDX-License-Identifier: Apache-2.0
// `koho check`: validates every file and tensor of a model directory and prints one error or a
// short summary. It reads headers only; --values reads every value, too.
#include <array>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/model_directory.h"
#include "app/number_format.h"
#include "chat/prompt_tokens.h"
#include "chat/template_choice.h"
#include "model/model_files.h"
#include "model/value_scan.h"
#include "runtime/loaded_text.h"

namespace koho::app {
namespace {

constexpr const char* kExamples =
    R"(Exit code 0 if the directory can be served, otherwise one error on standard error.

Examples:
  koho check models/tiny
  koho check /models/GLM-4.7-FP8 --values            reads every weight: NaN, infinity, bad scales
  koho check DIR --json)";

struct CheckOptions {
  std::string model;
  bool values = false;
  bool json = false;
};

/// What was found of the text side; `ids` 0: no tokenizer.json.
struct TextSide {
  std::int64_t ids = 0;
  std::string chat_template;
};

/// Opens the tokenizer and chooses the template. Errors: those of the tokenizer; invalid_argument:
/// the tokenizer has ids beyond the model's vocabulary, or
/// lacks a control token of the template.
Result<TextSide> check_text(const std::string& directory,
                            const ModelConfig& config,
                            std::vector<std::string>& warnings) {
  TextSide side;
  if (!has_tokenizer(directory)) {
    warnings.emplace_back("no tokenizer.json: requests and answers are token ids only");
    return side;
  }
  KOHO_TRY_ASSIGN(const Tokenizer tokenizer,
                  Tokenizer::load(std::filesystem::path(directory) / "tokenizer.json"));
  side.ids = tokenizer.vocab_size();
  if (side.ids > config.vocab_size)
    return make_error(ErrorCode::invalid_argument,
                      "tokenizer.json has ids up to {}, config.json's vocab_size is {}",
                      side.ids - 1, config.vocab_size);
  KOHO_TRY_ASSIGN(const std::optional<std::string> text, chat::read_template_text(directory));
  const chat::TemplateChoice choice = chat::choose_template(text, std::nullopt);
  if (!choice.warning.empty()) warnings.push_back(choice.warning);
  KOHO_TRY(chat::check_control_tokens(choice.style, tokenizer));
  side.chat_template = chat::template_style_name(choice.style);
  return side;
}

void print_text(const CheckOptions& options, const ModelFiles& files, const TextSide& text) {
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
      << fmt::format("  linears   {}\n", quantization_text(files.weights.linears));
  if (text.ids > 0)
    std::cout << fmt::format("  text      {} token ids, chat template {}\n", text.ids,
                             text.chat_template);
  if (options.values)
    std::cout << "  values    all read: every number finite, no scale below zero\n";
  for (const std::string& warning : files.warnings) std::cout << "  warning   " << warning << '\n';
}

void print_json(const CheckOptions& options, const ModelFiles& files, const TextSide& text) {
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
                             {"token_ids", text.ids},
                             {"chat_template", text.chat_template},
                             {"values_read", options.values},
                             {"warnings", files.warnings}};
  for (std::size_t i = 0; i < files.weights.linears.size(); ++i)
    out["linears"][quant_key(static_cast<WeightQuant>(i))] = files.weights.linears[i];
  std::cout << out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

Status run_check(const CheckOptions& options) {
  KOHO_TRY_ASSIGN(const std::string directory, find_model(options.model));
  KOHO_TRY_ASSIGN(ModelFiles files, open_model_files(directory));
  KOHO_TRY_ASSIGN(const TextSide text, check_text(directory, files.config, files.warnings));
  if (options.values) KOHO_TRY(scan_values(files.checkpoint));
  if (options.json)
    print_json(options, files, text);
  else
    print_text(options, files, text);
  if (!std::cout.flush())
    return make_error(ErrorCode::io_error, "standard output could not be written");
  return {};
}

}  // namespace

Runner add_check(CommandLine& command) {
  const auto options = std::make_shared<CheckOptions>();
  command
      .add_option("-m,--model,MODEL", options->model,
                  "Model directory; an argument without a flag is the same")
      ->type_name("DIR")
      ->required();
  command.add_flag("--values", options->values, "Also read every value of every tensor");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(kExamples);
  return [options] { return run_check(*options); };
}

}  // namespace koho::app
