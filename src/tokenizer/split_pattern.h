// SPDX-License-Identifier: Apache-2.0
// Translates the split pattern of a tokenizer.json from Oniguruma's syntax to PCRE2's. Accepts the
// constructs that mean the same in both engines or have an exact translation, and refuses all
// others by name: a pattern with another meaning would silently give wrong tokens.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace koho {

/// Translates `pattern` for PCRE2 with UTF and UCP. Accepted: characters; classes of characters,
/// ranges, \s \d \p{Lu} and the like; groups, (?i:...) over ASCII, look-ahead and look-behind;
/// alternatives; ? * + with lazy and possessive forms; {n} {n,} {n,m}.
/// \s becomes \p{White_Space}: PCRE2's own \s also matches U+180E.
/// Requires: well-formed UTF-8. Errors: unsupported, naming the construct and its place.
Result<std::string> translate_split_pattern(std::string_view pattern);

}  // namespace koho
