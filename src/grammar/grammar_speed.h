// SPDX-License-Identifier: Apache-2.0
// What a token costs with a grammar. A slow grammar would slow down each step of the batch, and so
// the requests beside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "grammar/grammar_compiler.h"
#include "grammar/matcher.h"

namespace koho {

/// Processor time of this thread.
std::int64_t thread_us();

/// Walks some tokens at random through the grammar, and refuses one whose tokens take long: a
/// request learns that before its first token. `words`: of a mask. Errors: grammar_too_complex.
Status check_speed(const CompiledGrammar& grammar, std::size_t words, const GrammarLimits& limits);

}  // namespace koho
