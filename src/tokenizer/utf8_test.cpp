// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace koho {
namespace {

std::string lossy(std::string_view bytes) {
  std::string out;
  append_utf8_lossy(out, bytes);
  return out;
}

TEST(Utf8, KnowsWholeCharactersOfEveryLength) {
  for (const std::string_view text : {"a", "é", "€", "🎉", "\xF4\x8F\xBF\xBF", "\xEE\x80\x80"}) {
    const Utf8Step step = utf8_step(text);
    EXPECT_EQ(step.kind, Utf8Step::Kind::whole);
    EXPECT_EQ(step.bytes, text.size());
  }
  EXPECT_EQ(utf8_code_point("🎉", utf8_step("🎉")), U'🎉');
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndCodePointsBeyondUnicode) {
  for (const std::string_view text : {"\xC0\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\x80"}) {
    EXPECT_EQ(utf8_step(text).kind, Utf8Step::Kind::invalid);
    EXPECT_EQ(utf8_step(text).bytes, 1U);
  }
}

TEST(Utf8, DistinguishesACutOffCharacterFromAnIllFormedOne) {
  EXPECT_EQ(utf8_step("\xF0\x9F").kind, Utf8Step::Kind::cut_off);
  EXPECT_EQ(utf8_step("\xF0\x9F").bytes, 2U);
  EXPECT_EQ(utf8_step("\xF0\x9Fx").kind, Utf8Step::Kind::invalid);
  EXPECT_EQ(utf8_step("\xF0\x9Fx").bytes, 2U);
}

TEST(Utf8, FindsTheFirstBrokenByteAtEveryPlaceAroundAWord) {
  for (std::size_t place = 0; place < 20; ++place) {
    std::string text(20, 'a');
    EXPECT_EQ(utf8_valid_bytes(text), text.size());
    text[place] = '\xFF';
    EXPECT_EQ(utf8_valid_bytes(text), place);
  }
}

// Examples from section 3.9 of the Unicode standard; Python's errors="replace" gives the same.
TEST(Utf8, ReplacesEachMaximalPart) {
  EXPECT_EQ(lossy("a\xF1\x80\x80\xE1\x80\xC2"
                  "b\x80"
                  "c\x80\xBF"
                  "d"),
            "a���b�c��d");
  EXPECT_EQ(lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                  "A"),
            "��������A");
  EXPECT_EQ(lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                  "A"),
            "��������A");
  EXPECT_EQ(lossy("plain"), "plain");
}

}  // namespace
}  // namespace koho
