// SPDX-License-Identifier: Apache-2.0
#include "app/loaded_model.h"

#include <chrono>

#include "base/log.h"
#include "chat/template_choice.h"

namespace koho::app {
namespace {

/// The chat template of a directory, with its warning logged.
Result<chat::TemplateStyle> choose_style(const std::filesystem::path& directory,
                                         const std::string& name) {
  KOHO_TRY_ASSIGN(const std::optional<chat::TemplateStyle> asked, chat::parse_template_style(name));
  KOHO_TRY_ASSIGN(const std::optional<std::string> text, chat::read_template_text(directory));
  const chat::TemplateChoice choice = chat::choose_template(text, asked);
  if (!choice.warning.empty()) log::warning("{}", choice.warning);
  return choice.style;
}

}  // namespace

Result<const Tokenizer*> LoadedModel::need_tokenizer() const {
  if (tokenizer) return &*tokenizer;
  return make_error(ErrorCode::not_found,
                    "{} has no tokenizer.json; give token ids with --prompt-ids",
                    checkpoint->directory().string());
}

Result<LoadedModel> load_model(const std::filesystem::path& directory,
                               const std::string& template_name) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(model.config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(model.generation, read_generation_config(directory, model.config, warnings));
  KOHO_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  model.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  KOHO_TRY_ASSIGN(ResolvedWeights weights, resolve_weights(model.config, *model.checkpoint));
  model.sources = std::move(weights.sources);
  const std::filesystem::path tokenizer = directory / "tokenizer.json";
  if (std::filesystem::exists(tokenizer)) {
    KOHO_TRY_ASSIGN(model.tokenizer, Tokenizer::load(tokenizer));
    KOHO_TRY_ASSIGN(model.template_style, choose_style(directory, template_name));
  }
  for (const std::vector<std::string>* list :
       {&warnings, &model.checkpoint->warnings(), &weights.warnings})
    for (const std::string& warning : *list) log::warning("{}", warning);
  model.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace koho::app
