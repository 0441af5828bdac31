// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte alphabet: tokenizer.json spells each of the 256 bytes as one printable character.
#pragma once

#include <string>
#include <string_view>

namespace koho {

/// Appends the bytes that `token` spells and returns true; returns false, with `out` unchanged, if
/// a character of it is outside the alphabet. Requires: well-formed UTF-8.
bool append_spelled_bytes(std::string& out, std::string_view token);

/// The spelling of `bytes` in the alphabet.
std::string spell_bytes(std::string_view bytes);

}  // namespace koho
