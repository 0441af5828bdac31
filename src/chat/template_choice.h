// SPDX-License-Identifier: Apache-2.0
// Which of our templates a checkpoint gets: by the hash of its own template file when that is one
// we were compared with, else by the caller's flag, else GLM-4.7's with a warning.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "chat/template.h"

namespace koho::chat {

/// The choice, the checkpoint's template hash ("" without a template), and what to tell the user
/// ("" when all is well).
struct TemplateChoice {
  TemplateStyle style = TemplateStyle::glm_4_7;
  std::string hash;
  std::string warning;
};

/// XXH3-128 of a template's text as 32 hex digits. One newline at its end, which Jinja drops, does
/// not count.
std::string template_hash(std::string_view template_text);

/// `name` is "auto" (nothing), "glm-4.7", "glm-4.6" or "glm-4.5". Errors: invalid_argument.
Result<std::optional<TemplateStyle>> parse_template_style(std::string_view name);

/// The text of the template in a model directory: `chat_template.jinja`, else the string
/// `chat_template` of `tokenizer_config.json` (of a list of named ones, "default"), else nothing.
/// Both files are read where both are there. Errors: io_error; corrupt_data
/// (tokenizer_config.json is not JSON, chat_template.jinja is not UTF-8).
Result<std::optional<std::string>> read_template_text(const std::filesystem::path& model_directory);

/// Chooses for a checkpoint whose template is `template_text`; `asked`, if given, always wins.
TemplateChoice choose_template(const std::optional<std::string>& template_text,
                               std::optional<TemplateStyle> asked);

}  // namespace koho::chat
