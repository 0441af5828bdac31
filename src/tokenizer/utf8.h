// SPDX-License-Identifier: Apache-2.0
// UTF-8 as the Unicode standard defines it (table 3-7): what a run of bytes begins with, where it
// stops being well-formed, and its lossy reading with U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace koho {

/// What a text begins with.
struct Utf8Step {
  enum class Kind : std::uint8_t {
    whole,    // one well-formed character
    invalid,  // bytes that no continuation can make well-formed
    cut_off   // the text ends within what may still become a character
  };
  Kind kind = Kind::whole;
  std::size_t bytes = 1;  // of the character, or of the part that one U+FFFD stands for
};

/// Requires: not empty.
Utf8Step utf8_step(std::string_view text);

/// The length of the longest well-formed beginning of `text`: its size when all of it is.
std::size_t utf8_valid_bytes(std::string_view text);

/// Appends `bytes` with one U+FFFD for each maximal part that is not well-formed, as Python's
/// errors="replace" and Rust's from_utf8_lossy do.
void append_utf8_lossy(std::string& out, std::string_view bytes);

/// The code point of the character that `text` begins with. Requires: that is whole.
char32_t utf8_code_point(std::string_view text, const Utf8Step& step);

}  // namespace koho
