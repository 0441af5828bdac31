// SPDX-License-Identifier: Apache-2.0
// The text side of a model directory: tokenizer and chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "chat/message.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace koho {

struct LoadedText {
  Tokenizer tokenizer;
  chat::TemplateStyle style = chat::TemplateStyle::glm_4_7;
  std::string template_hash;  // chat::TemplateChoice::hash, of the directory's own template

  /// The ids of a conversation's prompt: control tokens from the template only. Errors: as
  /// chat::render.
  Result<std::vector<std::int32_t>> encode(const chat::Conversation& conversation) const;
};

/// Whether `directory` has a tokenizer.json.
bool has_tokenizer(const std::filesystem::path& directory);

/// What the text side is wanted for: plain text needs none of the template's control tokens.
enum class TextUse : std::uint8_t { chat, plain };

/// Opens tokenizer.json and chooses the template; `template_name` is "auto" or a template's name.
/// Warnings are logged. Errors: those of the files; for a chat, those of
/// chat::check_control_tokens.
Result<LoadedText> load_text(const std::filesystem::path& directory,
                             const std::string& template_name,
                             TextUse use = TextUse::chat);

}  // namespace koho
