// SPDX-License-Identifier: Apache-2.0
// Turns a rendered prompt into token ids. Only control tokens that the template wrote become added
// tokens; the same characters in a client's text stay ordinary text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace koho::chat {

/// The ids of a prompt's segments. No token reaches across a control token, so a prompt that is cut
/// before control tokens may be encoded part by part. Errors: as Tokenizer::encode().
Result<std::vector<std::int32_t>> encode(std::span<const Segment> segments,
                                         const Tokenizer& tokenizer);
/// The same, but of more than `ids_max` ids only the first ones; `total` is the number of all.
Result<std::vector<std::int32_t>> encode(std::span<const Segment> segments,
                                         const Tokenizer& tokenizer,
                                         std::size_t ids_max,
                                         std::size_t& total);

/// Checks that each control token of the template is one added token of the tokenizer; otherwise it
/// would reach the model as ordinary text. Errors: invalid_argument with the token.
Status check_control_tokens(TemplateStyle style, const Tokenizer& tokenizer);

}  // namespace koho::chat
