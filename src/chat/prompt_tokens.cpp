// SPDX-License-Identifier: Apache-2.0
#include "chat/prompt_tokens.h"

namespace koho::chat {

Result<std::vector<std::int32_t>> encode(std::span<const Segment> segments,
                                         const Tokenizer& tokenizer) {
  std::vector<TextSegment> texts;
  texts.reserve(segments.size());
  for (const Segment& segment : segments)
    texts.push_back(
        {.text = segment.text, .allow_special = segment.kind == Segment::Kind::control});
  return tokenizer.encode(texts);
}

}  // namespace koho::chat
