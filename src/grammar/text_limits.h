// SPDX-License-Identifier: Apache-2.0
// Limits that every text of a constraint passes before anything parses it.
#pragma once

#include <string_view>

#include "base/error.h"
#include "grammar/grammar_compiler.h"

namespace koho {

/// Checks size, nesting of parentheses and encoding. `name` starts the message. Errors:
/// invalid_argument with invalid_grammar (empty, not UTF-8, a zero byte) or grammar_too_complex
/// (too long, nested too deep).
Status check_text(std::string_view name, std::string_view text, const GrammarLimits& limits);

/// Refuses escapes of an EBNF grammar that are half of a UTF-16 pair, or of which GBNF reads two
/// digits and xgrammar more, and xgrammar's Regex(…). Errors: invalid_grammar.
Status check_grammar_escapes(std::string_view text);

}  // namespace koho
