// SPDX-License-Identifier: Apache-2.0
// "Did you mean …?": the known word nearest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace koho::app {

/// The word of `known` with the least edits to `given`; empty if the nearest is no likelier than
/// chance: more than a third of its letters, and more than two, differ.
std::string nearest_word(std::string_view given, std::span<const std::string> known);

/// '_' as '-' in the name of a flag: "--max_tokens=a_b" is "--max-tokens=a_b".
std::string hyphenated(std::string_view flag);

}  // namespace koho::app
