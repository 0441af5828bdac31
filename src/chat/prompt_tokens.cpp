// SPDX-License-Identifier: Apache-2.0
#include "chat/prompt_tokens.h"

#include <optional>
#include <string_view>

namespace koho::chat {

Result<std::vector<std::int32_t>> encode(std::span<const Segment> segments,
                                         const Tokenizer& tokenizer) {
  std::size_t total = 0;
  return encode(segments, tokenizer, ~std::size_t{0}, total);
}

Result<std::vector<std::int32_t>> encode(std::span<const Segment> segments,
                                         const Tokenizer& tokenizer,
                                         std::size_t ids_max,
                                         std::size_t& total) {
  std::vector<TextSegment> texts;
  texts.reserve(segments.size());
  for (const Segment& segment : segments)
    texts.push_back(
        {.text = segment.text, .allow_special = segment.kind == Segment::Kind::control});
  return tokenizer.encode(texts, ids_max, total);
}

Status check_control_tokens(TemplateStyle style, const Tokenizer& tokenizer) {
  for (const std::string_view token : control_tokens(style)) {
    const std::optional<std::int32_t> id = tokenizer.id_of(token);
    if (!id)
      return make_error(
          ErrorCode::invalid_argument,
          "tokenizer.json lacks the added token '{}', which the chat template {} writes", token,
          template_style_name(style));
    KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids, tokenizer.encode_with_special(token));
    if (ids != std::vector{*id})
      return make_error(
          ErrorCode::invalid_argument,
          "tokenizer.json must encode its added token {} '{}', which the chat template "
          "{} writes, as that one token",
          *id, token, template_style_name(style));
  }
  return {};
}

}  // namespace koho::chat
