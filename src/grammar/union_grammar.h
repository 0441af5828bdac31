// SPDX-License-Identifier: Apache-2.0
// The union of several grammars: the matcher follows all of them at once, and each token drops the
// ones that do not allow it.
#pragma once

#include <memory>
#include <vector>

#include "grammar/matcher.h"

namespace koho {

/// A grammar that allows what any of `grammars` allows. Requires: `grammars` is not empty.
std::shared_ptr<const CompiledGrammar> union_of(
    std::vector<std::shared_ptr<const CompiledGrammar>> grammars);

}  // namespace koho
