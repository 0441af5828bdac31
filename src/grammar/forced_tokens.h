// SPDX-License-Identifier: Apache-2.0
// A grammar that allows exactly one sequence of tokens. The engine samples that sequence and
// reports its log probabilities: this is how prompt logprobs are computed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/matcher.h"

namespace koho {

/// Errors: fill_mask() of its matchers returns invalid_argument if a token lies outside the mask.
std::shared_ptr<const CompiledGrammar> forced_tokens(std::vector<std::int32_t> tokens);

}  // namespace koho
