// SPDX-License-Identifier: Apache-2.0
#include "base/json_pointer.h"

#include <gtest/gtest.h>

namespace koho {
namespace {

using Steps = std::vector<std::string>;

TEST(JsonPointer, StepsAreUnescaped) {
  EXPECT_EQ(pointer_steps("#"), Steps{});
  EXPECT_EQ(pointer_steps("#/"), Steps{""});
  EXPECT_EQ(pointer_steps("#/$defs/a"), (Steps{"$defs", "a"}));
  EXPECT_EQ(pointer_steps("#/a~1b/~0~01/c%20d"), (Steps{"a/b", "~~1", "c d"}));
  // Percent escapes are undone first.
  EXPECT_EQ(pointer_steps("#/List%5Bint%5d%2Fx%7E1y%25f"), (Steps{"List[int]", "x/y%f"}));
}

TEST(JsonPointer, WhatIsNoPointerHasNoSteps) {
  for (const char* reference :
       {"", "a", "#a", "/a", "x#/a", "#/~", "#/~2", "#/a%", "#/%4", "#/%zz"})
    EXPECT_FALSE(pointer_steps(reference)) << reference;
}

}  // namespace
}  // namespace koho
