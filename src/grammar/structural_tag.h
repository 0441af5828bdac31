// SPDX-License-Identifier: Apache-2.0
// Structural tags as clients send them: the JSON of vLLM and xgrammar, {"type": "structural_tag",
// "format": …}, and the older form with "structures" and "triggers". This file checks every field
// and writes the tag anew, so that xgrammar gets no field that it would silently ignore and no text
// that no limit has checked.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "grammar/grammar_compiler.h"

namespace koho {

/// The structural tag for xgrammar. Supports the formats of text: const_string, json_schema,
/// grammar, regex, any_text, sequence, or, optional, plus, star, repeat, tag, triggered_tags,
/// tags_with_separator, dispatch. Errors: invalid_argument with a reason of constraint.h and the
/// path of the fault ("$.format.content").
Result<std::string> structural_tag_text(std::string_view text, const GrammarLimits& limits);

/// The tag of a choice of strings. Errors: invalid_argument with a reason of constraint.h.
Result<std::string> choice_tag(const Constraint& constraint, const GrammarLimits& limits);

}  // namespace koho
