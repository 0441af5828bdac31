// SPDX-License-Identifier: Apache-2.0
// A model directory, opened: config, weights (mapped), stop tokens, tokenizer and chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "chat/template.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace koho::app {

struct LoadedModel {
  ModelConfig config;
  GenerationConfig generation;
  std::unique_ptr<Checkpoint> checkpoint;  // owns the memory behind `sources`
  ModelSources sources;
  std::optional<Tokenizer> tokenizer;  // nothing if the directory has no tokenizer.json
  chat::TemplateStyle template_style = chat::TemplateStyle::glm_4_7;
  double load_s = 0.0;

  /// The tokenizer, or an error that names the missing file.
  Result<const Tokenizer*> need_tokenizer() const;
  /// Ids that end an answer.
  const std::vector<std::int32_t>& stop_ids() const { return generation.eos_token_ids; }
};

/// Opens and validates everything. `template_name`: "auto" or a template's name.
/// Errors: those of the files, each naming its file.
Result<LoadedModel> load_model(const std::filesystem::path& directory,
                               const std::string& template_name);

/// The ids of a prompt made of control tokens and plain text.
Result<std::vector<std::int32_t>> encode_prompt(const Tokenizer& tokenizer,
                                                const chat::Prompt& prompt);

}  // namespace koho::app
