// SPDX-License-Identifier: Apache-2.0
// The records of /v1/batches without their server: how many a key may leave unfinished.
#include "server/batch_records.h"

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

}  // namespace
}  // namespace koho::server
