// SPDX-License-Identifier: Apache-2.0
// The records of /v1/batches without their server: how many a key may leave unfinished.
#include "server/batch_records.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace koho::server {
namespace {

TEST(BatchRecords, OfOneKeyLeaveRoomForThoseOfOthers) {
  const koho::testing::TemporaryDirectory directory;
  BatchRecords records(directory.path());
  ASSERT_TRUE(records.read().ok());
  const auto add = [&](const std::string& owner, int number) {
    BatchRecord record{.id = "batch_" + owner + std::to_string(number), .owner = owner};
    record.enter(BatchStatus::validating, 1);
    return records.add(record).ok();
  };
  int own = 0;
  while (own < 2000 && add("a", own)) ++own;
  EXPECT_GE(own, 256);
  ASSERT_LT(own, 2000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(add("b", i)) << i;
  EXPECT_FALSE(add("a", own));
}

TEST(BatchRecords, ACancelledOneDoesNotFailForItsInput) {
  const koho::testing::TemporaryDirectory directory;
  BatchRecords records(directory.path());
  ASSERT_TRUE(records.read().ok());
  for (const bool cancelled : {true, false}) {
    BatchRecord record{.id = cancelled ? "batch_a" : "batch_b"};
    record.enter(BatchStatus::validating, 1);
    ASSERT_TRUE(records.add(record).ok());
    if (cancelled) {
      ASSERT_TRUE(records.cancel("", record.id).ok());
    }
    records.end_check(record.id, {.total = 3, .faults = {{.line = 2, .message = "no request"}}});
    const BatchRecord after = records.get(record.id);
    EXPECT_EQ(after.status, cancelled ? BatchStatus::cancelling : BatchStatus::failed);
    EXPECT_EQ(after.faults.size(), cancelled ? 0U : 1U);
  }
}

TEST(BatchRecords, ACheckOfOneThatIsForgottenEndsInPeace) {
  const koho::testing::TemporaryDirectory directory;
  BatchRecords records(directory.path(), 0);
  ASSERT_TRUE(records.read().ok());
  BatchRecord record{.id = "batch_a"};
  record.enter(BatchStatus::validating, 1);
  ASSERT_TRUE(records.add(record).ok());
  ASSERT_TRUE(records.cancel("", record.id).ok());
  ASSERT_TRUE(records.end(record.id, BatchStatus::cancelled).ok());
  EXPECT_EQ(records.status_of(record.id), BatchStatus::cancelled);
  records.forget_old();
  EXPECT_FALSE(records.status_of(record.id));
  records.end_check(record.id, {.total = 3});
}

TEST(BatchRecords, ThatAreOverAreForgottenOfWhoeverHasTheMost) {
  const koho::testing::TemporaryDirectory directory;
  BatchRecords records(directory.path(), 10);
  ASSERT_TRUE(records.read().ok());
  const auto add = [&](const std::string& owner, int number) {
    BatchRecord record{.id = "batch_" + owner + std::to_string(number),
                       .owner = owner,
                       .created_at = 100 + number};
    record.enter(BatchStatus::validating, 1);
    ASSERT_TRUE(records.add(record).ok());
    records.end_check(record.id, {.total = 0, .faults = {{.code = "empty_file"}}});
  };
  add("old", 1);
  add("old", 2);
  for (int i = 10; i < 40; ++i) add("new", i);
  for (const char* part : {"batch_new10.output", "batch_new10.errors", "batch_new39.output"})
    std::ofstream(directory.path() / part) << "{}";
  records.forget_old();
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "batch_new10.output"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "batch_new10.errors"));
  EXPECT_TRUE(std::filesystem::exists(directory.path() / "batch_new39.output"));
  EXPECT_EQ(records.list("old").size(), 2U);
  const std::vector<BatchRecord> left = records.list("new");
  ASSERT_EQ(left.size(), 8U);
  EXPECT_EQ(left.front().id, "batch_new39");
  EXPECT_EQ(left.back().id, "batch_new32");
  BatchRecords again(directory.path(), 10);
  ASSERT_TRUE(again.read().ok());
  EXPECT_EQ(again.list("new").size(), 8U);
}

}  // namespace
}  // namespace koho::server
