// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <memory>

#include <gtest/gtest.h>

namespace koho {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return make_error(ErrorCode::invalid_argument, "{} is odd", number);
  return number / 2;
}

Result<int> quarter(int number) {
  KOHO_TRY_ASSIGN(const int once, half(number));
  KOHO_TRY_ASSIGN(const int twice, half(once));
  return twice;
}

Status check_even(int number) {
  KOHO_TRY(half(number));
  return {};
}

TEST(Error, PassesAValueUp) {
  ASSERT_TRUE(quarter(8).ok());
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_TRUE(check_even(4).ok());
}

TEST(Error, PassesTheFirstErrorUp) {
  const Result<int> result = quarter(6);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(result.error().message, "3 is odd");
  EXPECT_FALSE(check_even(3).ok());
}

TEST(Error, ContextStandsBeforeTheMessage) {
  Status status = make_error(ErrorCode::io_error, "disk full");
  EXPECT_EQ(std::move(status).with_context("loading layer 17").error().message,
            "loading layer 17: disk full");
}

TEST(Error, ContextKeepsReasonAndField) {
  Error error = make_error(ErrorCode::invalid_argument, ErrorReason::too_deep, "{} levels", 65);
  error.field = "tools";
  error = std::move(error).with_context("the schema");
  EXPECT_EQ(error.message, "the schema: 65 levels");
  EXPECT_EQ(error.reason, ErrorReason::too_deep);
  EXPECT_EQ(error.field, "tools");
  EXPECT_EQ(error_reason_name(error.reason), "too_deep");
}

TEST(Error, AFieldErrorNamesTheFieldInItsMessageAndBesideIt) {
  const std::string field = "messages[0]";
  const Error error = make_field_error(ErrorCode::unsupported, field + ".type",
                                       "{} must be {}, found {}", "text", 3);
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_EQ(error.message, "messages[0].type must be text, found 3");
  EXPECT_EQ(error.field, "messages[0].type");
}

TEST(Error, MoveOnlyValuesPass) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  EXPECT_EQ(**std::move(result), 3);
}

TEST(ErrorDeathTest, AFailedCheckPrintsBothValues) {
  EXPECT_DEATH(KOHO_CHECK_EQ(1 + 1, 3), "check failed: 1 \\+ 1 == 3 \\(2 vs 3\\)");
}

}  // namespace
}  // namespace koho
