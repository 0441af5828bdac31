// SPDX-License-Identifier: Apache-2.0
// The chat templates of GLM-4.5, 4.6 and 4.7, written in C++: messages, tools and thinking flags to
// prompt text, byte for byte what jinja2 makes of the checkpoint's own template (tests/chat holds
// them together). GLM-4.5's is GLM-4.6's by what is known of it, not checked against its file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/message.h"

namespace koho::chat {

/// Whose template. The enumerators are in the order of kTemplateStyleNames.
enum class TemplateStyle : std::uint8_t { glm_4_7, glm_4_6, glm_4_5 };

/// "glm-4.7", "glm-4.6" or "glm-4.5".
std::string_view template_style_name(TemplateStyle style);

/// The added tokens that the template writes.
std::span<const std::string_view> control_tokens(TemplateStyle style);

/// A stretch of a prompt: one control token written by the template, or plain text. Text that came
/// from a client is always plain, so that "<|user|>" inside it never becomes a control token.
struct Segment {
  enum class Kind : std::uint8_t { control, text };
  Kind kind = Kind::text;
  std::string text;

  friend bool operator==(const Segment&, const Segment&) = default;
};

/// A rendered prompt. Neighbouring plain text is one segment: a tokenizer encodes each text segment
/// as a whole, without control tokens, and each control segment as its one added token.
struct Prompt {
  std::vector<Segment> segments;

  /// The prompt text: all segments concatenated.
  std::string text() const;
  /// Whether it ends in <think>: the answer then starts with reasoning (OutputParserOptions).
  bool ends_in_thinking() const;
};

/// Renders as the template does. Arguments that it cannot print (a tool message whose content is
/// null, a number or true) are errors.
/// Errors: invalid_argument, naming the field.
Result<Prompt> render(const Conversation& conversation, TemplateStyle style);

}  // namespace koho::chat
