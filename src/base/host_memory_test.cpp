// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <unistd.h>

#include <gtest/gtest.h>

namespace koho {
namespace {

TEST(HostMemory, IsSomeOfWhatTheMachineHas) {
  const std::optional<std::int64_t> available = available_memory_bytes();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, 0);
  EXPECT_LE(*available, static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

}  // namespace
}  // namespace koho
