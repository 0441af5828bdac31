// SPDX-License-Identifier: Apache-2.0
// Opens the tokenizer and chooses the chat template.
#include "runtime/loaded_text.h"

#include <optional>

#include "base/log.h"
#include "chat/prompt_tokens.h"
#include "chat/template_choice.h"

namespace koho {

Result<std::vector<std::int32_t>> LoadedText::encode(const chat::Conversation& conversation) const {
  KOHO_TRY_ASSIGN(const chat::Prompt prompt, chat::render(conversation, style));
  return chat::encode(prompt.segments, tokenizer);
}

bool has_tokenizer(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "tokenizer.json");
}

Result<LoadedText> load_text(const std::filesystem::path& directory,
                             const std::string& template_name,
                             TextUse use) {
  KOHO_TRY_ASSIGN(Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  KOHO_TRY_ASSIGN(const std::optional<chat::TemplateStyle> asked,
                  chat::parse_template_style(template_name));
  KOHO_TRY_ASSIGN(const std::optional<std::string> text, chat::read_template_text(directory));
  const chat::TemplateChoice choice = chat::choose_template(text, asked);
  if (!choice.warning.empty()) log::warning("{}", choice.warning);
  if (use == TextUse::chat) KOHO_TRY(chat::check_control_tokens(choice.style, tokenizer));
  return LoadedText{
      .tokenizer = std::move(tokenizer), .style = choice.style, .template_hash = choice.hash};
}

}  // namespace koho
