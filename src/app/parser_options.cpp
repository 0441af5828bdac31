// SPDX-License-Identifier: Apache-2.0
#include "app/parser_options.h"

#include <memory>

#include "api/model.h"

namespace koho::app {

chat::OutputParserOptions parser_options(const Runtime& runtime,
                                         const chat::Conversation& conversation) {
  const LoadedText& text = *runtime.text();
  const bool newest = text.style == chat::TemplateStyle::glm_4_7;  // its prompt ends in <think>
  chat::OutputParserOptions options;
  options.starts_in_reasoning = newest && conversation.enable_thinking.value_or(true);
  options.newline_after_tags = !newest;
  if (!conversation.tools.empty())
    options.tools = std::make_shared<chat::ToolSchemas>(conversation.tools);
  options.tag_ids = api::tag_ids_of(text.tokenizer);
  return options;
}

}  // namespace koho::app
