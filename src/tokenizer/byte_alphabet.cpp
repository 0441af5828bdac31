// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "tokenizer/utf8.h"

namespace koho {
namespace {

// A byte that is printable in Latin-1 spells itself; the other 68 bytes, in order, are U+0100 to
// U+0143.
constexpr char32_t kFirstBorrowed = 0x100;
constexpr char32_t kAlphabetEnd = 0x144;

constexpr bool spells_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> character{};          // of each byte
  std::array<std::int16_t, kAlphabetEnd> byte{};  // of each character, or -1
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t borrowed = kFirstBorrowed;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t character = spells_itself(byte) ? char32_t{byte} : borrowed++;
    alphabet.character[byte] = character;
    alphabet.byte[character] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.character[0xAD] == kAlphabetEnd - 1 && kAlphabet.character[' '] == 0x120);

}  // namespace

bool append_spelled_bytes(std::string& out, std::string_view token) {
  const std::size_t size = out.size();
  while (!token.empty()) {
    const Utf8Step step = utf8_step(token);
    const char32_t character = utf8_code_point(token, step);
    if (character >= kAlphabetEnd || kAlphabet.byte[character] < 0) {
      out.resize(size);
      return false;
    }
    out += static_cast<char>(kAlphabet.byte[character]);
    token.remove_prefix(step.bytes);
  }
  return true;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, kAlphabet.character[static_cast<std::uint8_t>(c)]);
  return out;
}

}  // namespace koho
