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
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/model_directory.h"
#include "app/number_format.h"
#include "chat/prompt_tokens.h"
#include "chat/template_choice.h"
#include "model/model_files.h"
#include "model/rank_sources.h"
#include "model/value_scan.h"
#include "runtime/loaded_text.h"

namespace koho::app {
namespace {

constexpr const char* kExamples =
    R"(Exit code 0 if the directory can be served, otherwise one error on standard error.

Examples:
  koho check models/tiny
  koho check /models/GLM-4.7-FP8 --values            reads every weight: NaN, infinity, bad scales
  koho check /models/GLM-4.7-FP8 --ranks 8           whether 8 ranks can divide it, and what each holds
  koho check /models/GLM-4.7-FP8 --ranks 8 --rank 3 --values
  koho check DIR --json)";

struct CheckOptions {
  std::string model;
  bool values = false;
  bool json = false;
  std::int64_t rank = -1;  // all of them
  Shard shard;
  std::string experts = "whole";
  std::string attention = "tp";
};

/// What one rank holds of the checkpoint.
struct RankPart {
  std::int64_t rank = 0;
  std::int64_t bytes = 0;
  ModelSources sources;
};

/// The asked-for rank's part, or those of all ranks. Errors: those of rank_sources: the model
/// cannot be cut so.
Result<std::vector<RankPart>> rank_parts(const CheckOptions& options, const ModelFiles& files) {
  std::vector<RankPart> parts;
  if (options.shard.ranks == 1 && options.rank < 0) return parts;
  Shard shard = options.shard;
  for (std::int64_t rank = 0; rank < shard.ranks; ++rank) {
    if (options.rank >= 0 && rank != options.rank) continue;
    shard.rank = rank;
    KOHO_TRY_ASSIGN(ModelSources sources, rank_sources(files.config, files.weights.sources, shard));
    const std::int64_t bytes = bytes_of(sources);
    parts.push_back({rank, bytes, std::move(sources)});
  }
  if (!parts.empty()) return parts;
  return make_error(ErrorCode::invalid_argument, "there is no rank {} of {}", options.rank,
                    shard.ranks);
}

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

void print_text(const CheckOptions& options,
                const ModelFiles& files,
                const std::vector<RankPart>& parts,
                const TextSide& text) {
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
  for (const RankPart& part : parts)
    std::cout << fmt::format("  rank      {} of {} holds {}\n", part.rank, options.shard.ranks,
                             bytes_text(static_cast<std::uint64_t>(part.bytes)));
  if (options.values)
    std::cout << fmt::format("  values    {} read: every number finite, no scale below zero\n",
                             options.rank < 0 ? "all" : "the rank's");
  for (const std::string& warning : files.warnings) std::cout << "  warning   " << warning << '\n';
}

void print_json(const CheckOptions& options,
                const ModelFiles& files,
                const std::vector<RankPart>& parts,
                const TextSide& text) {
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
  for (const RankPart& part : parts)
    out["ranks"].push_back({{"rank", part.rank}, {"weight_bytes", part.bytes}});
  std::cout << out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

Status run_check(CheckOptions options) {
  options.shard.experts =
      options.experts == "whole" ? ExpertLayout::expert_parallel : ExpertLayout::tensor_parallel;
  options.shard.attention =
      options.attention == "tp" ? AttentionLayout::tensor_parallel : AttentionLayout::data_parallel;
  KOHO_TRY_ASSIGN(const std::string directory, find_model(options.model));
  KOHO_TRY_ASSIGN(ModelFiles files, open_model_files(directory));
  KOHO_TRY_ASSIGN(const TextSide text, check_text(directory, files.config, files.warnings));
  KOHO_TRY_ASSIGN(const std::vector<RankPart> parts, rank_parts(options, files));
  if (options.values)
    KOHO_TRY(options.rank < 0 ? scan_values(files.checkpoint)
                              : scan_values(files.checkpoint, parts[0].sources));
  if (options.json)
    print_json(options, files, parts, text);
  else
    print_text(options, files, parts, text);
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
  command.add_option("--ranks", options->shard.ranks, "Ranks that the weights are cut for")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option("--rank", options->rank,
                  "Only this rank: --values reads its part and nothing else; all if left out")
      ->check(at_least(0));
  command
      .add_option("--experts", options->experts,
                  "Experts over ranks: whole (each rank has some) or sliced (a slice of all)")
      ->check(one_of({"whole", "sliced"}))
      ->capture_default_str();
  command.add_option("--attention", options->attention, "Attention over ranks: tp or dp")
      ->check(one_of({"tp", "dp"}))
      ->capture_default_str();
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(kExamples);
  return [options] { return run_check(*options); };
}

}  // namespace koho::app
