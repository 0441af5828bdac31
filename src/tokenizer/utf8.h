// SPDX-License-Identifier: Apache-2.0
// UTF-8 by the Unicode standard (table 3-7): the first character of a text, the length of its
// well-formed prefix, lossy decoding with U+FFFD, and a character's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace koho {

/// Whether `c` is the first byte of a UTF-8 character.
constexpr bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// What a text starts with.
struct Utf8Step {
  enum class Kind : std::uint8_t {
    whole,    // one well-formed character
    invalid,  // bytes that no continuation makes well-formed
    cut_off   // the text ends inside a character
  };
  Kind kind = Kind::whole;
  std::size_t bytes = 1;  // of the character, or of the bytes that one U+FFFD replaces
};

/// Requires: not empty.
Utf8Step utf8_step(std::string_view text);

/// The length of the longest well-formed prefix of `text`: text.size() if all of it is well-formed.
std::size_t utf8_valid_bytes(std::string_view text);

/// Appends `bytes` with one U+FFFD for each maximal ill-formed part, as Python's errors="replace"
/// and Rust's from_utf8_lossy do.
void append_utf8_lossy(std::string& out, std::string_view bytes);

/// The code point of the first character of `text`. Requires: step is utf8_step(text) and whole.
char32_t utf8_code_point(std::string_view text, const Utf8Step& step);

/// Appends the character with that code point. Requires: there is one.
void append_utf8(std::string& out, char32_t code);

}  // namespace koho
