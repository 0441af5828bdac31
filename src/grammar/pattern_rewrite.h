// SPDX-License-Identifier: Apache-2.0
// Rewrites regular expressions to what xgrammar reads: (?i), \p{…}, a look-ahead that excludes
// words at the beginning, and white space of strings. Private to src/grammar.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace koho {

/// What nests deeper, in an expression or in what excludes a longer word, would end on the end of a
/// stack: xgrammar visits groups by recursion.
inline constexpr int kGroupDepthMax = 256;
inline constexpr std::size_t kExcludedBytesMax = 200;

/// Rewrites the expressions of one schema.
class PatternRewriter {
 public:
  /// The characters of a property, as the inside of a class; nullopt: Unicode does not have it.
  using Properties = std::map<std::string, std::optional<std::string>, std::less<>>;

  /// The same expression without:
  ///   (?i) at the beginning: each ASCII letter becomes a class of both cases;
  ///   \p{L}, \p{N} and other properties: classes of the characters below U+0530 that have the
  ///     property, and of the longer runs of such characters above (some rare characters that have
  ///     the property do not match);
  ///   ^(?!a|b) before ".*" or ".+": the strings that do not begin with a word; with $ behind the
  ///     words: that are none of them;
  ///   \s of a `json_string`: a space, as all other white space would be an escape there;
  ///   ".": no end of a line, of ECMA-262's four (but behind (?s)).
  /// Errors: unsupported_schema with what to write instead: other look-around, \P{…}, a property
  /// that Unicode does not have, (?i) with other letters; grammar_too_complex: groups nest deeper
  /// than kGroupDepthMax.
  Result<std::string> rewrite(std::string_view pattern, bool json_string);

 private:
  Properties properties_;
};

/// An expression for all strings that, without quotation marks, backslashes, control characters and
/// ends of lines, are none of `words`, or with `prefixes` begin with none; `empty`: the empty
/// string, too.
/// Requires: each word is non-empty printable ASCII without quotation marks and backslashes, of at
/// most kExcludedBytesMax.
std::string pattern_without(std::span<const std::string> words, bool prefixes, bool empty);

/// "^(?!a|b$).*$" as an expression without look-ahead; nullopt: it has another form.
std::optional<std::string> pattern_without_lookahead(std::string_view pattern);

}  // namespace koho
