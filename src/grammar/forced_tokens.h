// SPDX-License-Identifier: Apache-2.0
// A constraint that leaves no choice: the tokens that come next are known. What an answer that is
// held to it tells are the log probabilities of these tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/matcher.h"

namespace koho {

/// Errors of its matchers: fill_mask: invalid_argument: a token is beyond the mask.
std::shared_ptr<const CompiledGrammar> forced_tokens(std::vector<std::int32_t> tokens);

}  // namespace koho
