// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/byte_alphabet.h"

#include <string>

#include <gtest/gtest.h>

namespace koho {
namespace {

TEST(ByteAlphabet, SpellsBlankNewlineAndLetterAsGpt2Does) {
  EXPECT_EQ(spell_bytes(" a\n\xAD\xFF"), "ĠaĊŃÿ");
}

TEST(ByteAlphabet, ReadsBackEveryByte) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  std::string read = "x";
  EXPECT_TRUE(append_spelled_bytes(read, spell_bytes(all)));
  EXPECT_EQ(read, "x" + all);
}

TEST(ByteAlphabet, RefusesCharactersOutsideAndChangesNothing) {
  for (const std::string_view token : {"a b", "a\n", "ń", "東", "\u00AD"}) {
    std::string out = "x";
    EXPECT_FALSE(append_spelled_bytes(out, token)) << token;
    EXPECT_EQ(out, "x");
  }
}

}  // namespace
}  // namespace koho
