// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_strings.h"

#include <random>

#include <gtest/gtest.h>

namespace koho {
namespace {

TEST(StopStrings, AMatchAcrossPiecesIsNeverShown) {
  StopStrings stops({"\n\nUser:"});
  EXPECT_EQ(stops.feed("Hello\n"), "Hello");
  EXPECT_EQ(stops.feed("\nUs"), "");
  EXPECT_EQ(stops.feed("er: hi"), "");
  EXPECT_TRUE(stops.matched());
  EXPECT_EQ(stops.match(), "\n\nUser:");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopStrings, WhatCannotBecomeAStopIsReleased) {
  StopStrings stops({"aab"});
  EXPECT_EQ(stops.feed("aa"), "");
  EXPECT_EQ(stops.feed("a"), "a");
  EXPECT_EQ(stops.feed("c"), "aac");
  EXPECT_EQ(stops.feed("a"), "");
  EXPECT_EQ(stops.flush(), "a");
  EXPECT_FALSE(stops.matched());
}

TEST(StopStrings, TheFirstToBeCompleteWins) {
  StopStrings stops({"late", "ear"});
  EXPECT_EQ(stops.feed("an early later"), "an ");
  EXPECT_EQ(stops.match(), "ear");
  StopStrings nested({"abcd", "bc"});
  EXPECT_EQ(nested.feed("xabcd"), "xa");
  EXPECT_EQ(nested.match_index(), 1);
}

TEST(StopStrings, TheMatchIsShownIfAsked) {
  StopStrings stops({"b"}, true);
  EXPECT_EQ(stops.feed("abc"), "ab");
}

/// The definition, end by end.
std::int32_t search(const std::vector<std::string>& stops,
                    const std::string& text,
                    std::string& shown) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::int32_t best = -1;
    for (std::size_t s = 0; s < stops.size(); ++s)
      if (std::string_view(text).substr(0, end).ends_with(stops[s]) &&
          (best == -1 || stops[s].size() > stops[static_cast<std::size_t>(best)].size()))
        best = static_cast<std::int32_t>(s);
    if (best == -1) continue;
    shown = text.substr(0, end - stops[static_cast<std::size_t>(best)].size());
    return best;
  }
  shown = text;
  return -1;
}

TEST(StopStrings, AgreesWithASearchHoweverTheTextIsCut) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 100000; ++round) {
    const auto word = [&random](std::size_t most) {
      std::string text(1 + random() % most, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = word(5);
    const std::string text = word(16);
    std::string expected;
    const std::int32_t expected_stop = search(stops, text, expected);

    StopStrings matcher(stops);
    std::string out;
    std::int32_t stop = -1;
    for (std::size_t i = 0; i < text.size() && stop == -1;) {
      const std::size_t piece = random() % 4;
      matcher.feed(std::string_view(text).substr(i, piece), out);
      stop = matcher.match_index();
      ASSERT_TRUE(expected.starts_with(out));  // never shows a byte of the stop
      i += piece;
    }
    matcher.flush(out);
    ASSERT_EQ(stop, expected_stop);
    ASSERT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace koho
