// SPDX-License-Identifier: Apache-2.0
// What every text of a constraint is held to before anything reads it.
#pragma once

#include <string_view>

#include "base/error.h"
#include "grammar/grammar_compiler.h"

namespace koho {

/// An invalid_argument of one of constraint.h's codes.
Error refused(std::string_view code, std::string_view message);

/// Errors: invalid_argument: empty, too long, nested too deep in parentheses, not UTF-8.
Status check_text(std::string_view name, std::string_view text, const GrammarLimits& limits);

}  // namespace koho
