// SPDX-License-Identifier: Apache-2.0
// Structural tags as clients write them: vLLM's and xgrammar's JSON, {"type": "structural_tag",
// "format": …}, and its older form with "structures" and "triggers". Read and written anew, so that
// nothing reaches xgrammar that it would pass over without a word or that no limit has seen.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "grammar/grammar_compiler.h"

namespace koho {

/// The structural tag that xgrammar reads. Formats of text only: const_string, json_schema,
/// grammar, regex, any_text, sequence, or, optional, plus, star, repeat, tag, triggered_tags,
/// tags_with_separator, dispatch. Errors: invalid_argument with one of constraint.h's reasons and
/// the place ("$.format.content").
Result<std::string> structural_tag_text(std::string_view text, const GrammarLimits& limits);

}  // namespace koho
