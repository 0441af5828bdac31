// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that BPE works on, with the tokenizer file's own split patterns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho {

/// Of one text to split.
inline constexpr std::size_t kTextBytesMax = 256U << 20U;

/// A list of patterns, each cutting what the one before left. Matches and what lies between them
/// are pieces alike ("Isolated").
class PreTokenizer {
 public:
  /// Errors: unsupported: a pattern that translate_split_pattern or PCRE2 refuses.
  static Result<PreTokenizer> compile(std::span<const std::string> patterns);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Replaces `ends` by the offset behind each piece of `text`, ascending; no piece is empty.
  /// Requires: well-formed UTF-8, at most kTextBytesMax bytes. Threads: any.
  /// Errors: resource_exhausted: a pattern needs more steps or memory than its limit for this text.
  Status split(std::string_view text, std::vector<std::uint32_t>& ends) const;

 private:
  class Pattern;
  PreTokenizer();

  std::vector<Pattern> patterns_;
};

}  // namespace koho
