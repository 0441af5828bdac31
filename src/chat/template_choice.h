// SPDX-License-Identifier: Apache-2.0
// Chooses the chat template of a checkpoint: the caller's flag if given; else the style whose
// template file, known by its hash, tests/chat verifies; else GLM-4.7 with a warning.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "chat/template.h"

namespace koho::chat {

/// The chosen style, the hash of the checkpoint's template ("" if it has none), and a warning for
/// the user ("" if there is none).
struct TemplateChoice {
  TemplateStyle style = TemplateStyle::glm_4_7;
  std::string hash;
  std::string warning;
};

/// XXH3-128 of a template's text, as 32 hex digits. Leaves out one final newline, as Jinja does.
std::string template_hash(std::string_view template_text);

/// The style named "glm-4.7", "glm-4.6" or "glm-4.5"; nullopt for "auto". Errors: invalid_argument:
/// any other name.
Result<std::optional<TemplateStyle>> parse_template_style(std::string_view name);

/// The template's text in a model directory: `chat_template.jinja`, else `chat_template` of
/// `tokenizer_config.json` (a string, or "default" in a list of named ones), else nullopt. Reads
/// both files if both exist. Errors: io_error; corrupt_data (tokenizer_config.json is not JSON, or
/// chat_template.jinja is not UTF-8).
Result<std::optional<std::string>> read_template_text(const std::filesystem::path& model_directory);

/// Chooses for a checkpoint with this template. `asked`, the caller's flag, always wins.
TemplateChoice choose_template(const std::optional<std::string>& template_text,
                               std::optional<TemplateStyle> asked);

}  // namespace koho::chat
