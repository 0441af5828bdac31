// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <gtest/gtest.h>

namespace koho {
namespace {

TEST(ParseInteger, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_integer<std::int32_t>("0"), 0);
  EXPECT_EQ(parse_integer<std::int32_t>("-17"), -17);
  EXPECT_EQ(parse_integer<std::int64_t>("007"), 7);
  EXPECT_EQ(parse_integer<std::uint32_t>("fF", 16), 255U);
  for (const char* wrong : {"", "-", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "one", "1,000"})
    EXPECT_EQ(parse_integer<std::int64_t>(wrong), std::nullopt) << wrong;
  EXPECT_EQ(parse_integer<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_integer<std::int32_t>(std::string_view("12\0", 3)), std::nullopt);
  EXPECT_EQ(parse_integer<std::uint64_t>("g", 16), std::nullopt);
}

TEST(ParseInteger, RefusesWhatDoesNotFit) {
  EXPECT_EQ(parse_integer<std::int32_t>("2147483647"), 2147483647);
  EXPECT_EQ(parse_integer<std::int32_t>("2147483648"), std::nullopt);
  EXPECT_EQ(parse_integer<std::int32_t>("-2147483648"), -2147483647 - 1);
  EXPECT_EQ(parse_integer<std::int32_t>("-2147483649"), std::nullopt);
  EXPECT_EQ(parse_integer<std::uint64_t>("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(parse_integer<std::uint64_t>("18446744073709551616"), std::nullopt);
}

TEST(Trimmed, TakesBlanksOffBothEndsOnly) {
  EXPECT_EQ(trimmed(" \t a b\t "), "a b");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed(" \t"), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed(" a\r\n"), "a\r\n");
  EXPECT_EQ(trimmed(" a\r\n", " \r\n"), "a");
}

TEST(Split, GivesEveryPartBetweenSeparators) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split("a,bc,d", ','), (Parts{"a", "bc", "d"}));
  EXPECT_EQ(split("a b", ','), (Parts{"a b"}));
  EXPECT_EQ(split(",a,,", ','), (Parts{"", "a", "", ""}));
  EXPECT_EQ(split("", ','), (Parts{""}));
}

}  // namespace
}  // namespace koho
