// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte alphabet, in which tokenizer.json spells each of the 256 bytes as one printable
// character.
#pragma once

#include <string>
#include <string_view>

namespace koho {

/// Appends the bytes that `token` spells and returns true. Returns false and leaves `out` unchanged
/// if a character is outside the alphabet. Requires: `token` is well-formed UTF-8.
bool append_spelled_bytes(std::string& out, std::string_view token);

/// The spelling of `bytes` in the alphabet.
std::string spell_bytes(std::string_view bytes);

}  // namespace koho
