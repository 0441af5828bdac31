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

TEST(StopStrings, TheEarliestOfSeveralWins) {
  StopStrings stops({"late", "ear"});
  EXPECT_EQ(stops.feed("an early later"), "an ");
  EXPECT_EQ(stops.match(), "ear");
}

TEST(StopStrings, AnySplitShowsTheTextBeforeTheFirstMatch) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 24, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    std::vector<std::string> patterns(1 + random() % 3);
    for (std::string& pattern : patterns) {
      pattern.resize(1 + random() % 5);
      for (char& c : pattern) c = static_cast<char>('a' + random() % 2);
    }
    std::size_t first = std::string::npos;
    for (const std::string& pattern : patterns) first = std::min(first, text.find(pattern));
    StopStrings stops(patterns);
    std::string shown;
    // Fed letter by letter: a match is found when its last letter comes, so with patterns inside
    // each other the one that completes first ends the text; the text before the earliest begin is
    // shown in every case when fed whole.
    StopStrings whole(patterns);
    shown = whole.feed(text);
    shown += whole.flush();
    ASSERT_EQ(shown, text.substr(0, first)) << text;
    std::string by_letter;
    std::size_t place = 0;
    while (place < text.size() && !stops.matched())
      by_letter += stops.feed(text.substr(place++, 1));
    by_letter += stops.flush();
    ASSERT_EQ(stops.matched(), whole.matched());
    ASSERT_EQ(by_letter, text.substr(0, by_letter.size()));
    for (const std::string& pattern : patterns)
      ASSERT_EQ(by_letter.find(pattern), std::string::npos);
  }
}

}  // namespace
}  // namespace koho
