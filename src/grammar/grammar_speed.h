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

/// Begins with the grammar and walks some tokens at random through it; refuses one that nothing
/// satisfies, or whose tokens take long: a request learns that before its first token. `words`: of
/// a mask; `end_ns`: of the thread's time, when the walk is to end. Errors: unsatisfiable_schema,
/// grammar_too_complex.
Status try_out(const CompiledGrammar& grammar,
               std::size_t words,
               const GrammarLimits& limits,
               std::int64_t end_ns);

}  // namespace koho
