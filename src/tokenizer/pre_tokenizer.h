// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that BPE encodes, by the split patterns of tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho {

/// The largest text that split() accepts.
inline constexpr std::size_t kTextBytesMax = 256U << 20U;

/// A list of patterns. Each cuts the pieces of the one before. The matches and the text between
/// them are pieces ("Isolated" in tokenizer.json).
class PreTokenizer {
 public:
  /// Errors: unsupported: translate_split_pattern() or PCRE2 refuses a pattern.
  static Result<PreTokenizer> compile(std::span<const std::string> patterns);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Sets `ends` to the end offset of each piece of `text`, ascending. No piece is empty.
  /// Requires: `text` is well-formed UTF-8 of at most kTextBytesMax bytes. Threads: any.
  /// Errors: resource_exhausted: a match passes its limit of steps or memory.
  Status split(std::string_view text, std::vector<std::uint32_t>& ends) const;
  /// Calls `use` with these offsets instead.
  Status split(std::string_view text, const std::function<void(std::uint32_t end)>& use) const;

 private:
  class Pattern;
  PreTokenizer();

  std::vector<Pattern> patterns_;
};

}  // namespace koho
