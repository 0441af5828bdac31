// SPDX-License-Identifier: Apache-2.0
// From a rendered prompt to token ids: the one place where the template's control tokens, and
// nothing else, may become tokens of their kind.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace koho::chat {

/// The ids of a prompt's segments, or of some of them: a control token ends a piece of text, so the
/// ids of pieces that begin with one add up to those of the whole. Errors: as Tokenizer::encode.
Result<std::vector<std::int32_t>> encode(std::span<const Segment> segments,
                                         const Tokenizer& tokenizer);

/// Whether each control token that the template writes is one added token of the tokenizer:
/// without, it would reach the model as ordinary text. Errors: invalid_argument, naming the token.
Status check_control_tokens(TemplateStyle style, const Tokenizer& tokenizer);

}  // namespace koho::chat
