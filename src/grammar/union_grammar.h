// SPDX-License-Identifier: Apache-2.0
// An answer that follows one of several grammars: all of them at once, until a token decides.
#pragma once

#include <memory>
#include <vector>

#include "grammar/matcher.h"

namespace koho {

/// Allows what any of `grammars` allows. Requires: there is one at least.
std::shared_ptr<const CompiledGrammar> union_of(
    std::vector<std::shared_ptr<const CompiledGrammar>> grammars);

}  // namespace koho
