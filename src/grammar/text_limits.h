// SPDX-License-Identifier: Apache-2.0
// What every text of a constraint is held to before anything reads it.
#pragma once

#include <string_view>

#include "base/error.h"
#include "grammar/grammar_compiler.h"

namespace koho {

/// Errors: invalid_argument: empty, too long, nested too deep in parentheses, not UTF-8.
Status check_text(std::string_view name, std::string_view text, const GrammarLimits& limits);

}  // namespace koho
