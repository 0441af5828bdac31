// SPDX-License-Identifier: Apache-2.0
// The chat templates of GLM-4.5, 4.6 and 4.7 in C++: render() turns messages, tools and thinking
// flags into prompt text. For 4.7 and 4.6 the text equals, byte for byte, what jinja2 renders from
// the checkpoint's template; tests/chat compares them. 4.5 renders as 4.6 and is not verified
// against its template file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/message.h"

namespace koho::chat {

/// The model whose template it is. In the order of kTemplateStyleNames.
enum class TemplateStyle : std::uint8_t { glm_4_7, glm_4_6, glm_4_5 };

/// "glm-4.7", "glm-4.6" or "glm-4.5".
std::string_view template_style_name(TemplateStyle style);

/// The added tokens that the template writes.
std::span<const std::string_view> control_tokens(TemplateStyle style);

/// A part of a prompt: one control token that the template writes, or plain text. A client's text
/// is always plain, so "<|user|>" in it never becomes a control token.
struct Segment {
  enum class Kind : std::uint8_t { control, text };
  Kind kind = Kind::text;
  std::string text;

  friend bool operator==(const Segment&, const Segment&) = default;
};

/// A rendered prompt. Adjacent plain text is one segment. The tokenizer encodes a text segment as a
/// whole, without added tokens, and a control segment as its added token.
struct Prompt {
  std::vector<Segment> segments;

  /// The prompt text: all segments concatenated.
  std::string text() const;
  /// Whether the prompt ends with <think>, so that the answer starts with reasoning.
  bool ends_in_thinking() const;
};

/// Renders a conversation. Errors: invalid_argument with the field, where the template raises an
/// error: the content of a tool message is null, a number or true.
Result<Prompt> render(const Conversation& conversation, TemplateStyle style);

}  // namespace koho::chat
