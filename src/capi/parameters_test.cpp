// SPDX-License-Identifier: Apache-2.0
#include "capi/parameters.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace koho::capi {
namespace {

TEST(Parameters, NoOptionsAreTheDefaults) {
  const Result<RuntimeOptions> made = runtime_options(nullptr);
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->device.deterministic);
}

TEST(Parameters, TheLastFieldOfTheOptionsIsPassedOn) {
  EngineOptions options{};
  options.struct_size = sizeof(options);
  options.num_gpus = 1;
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic ? 1 : 0;
    const Result<RuntimeOptions> made = runtime_options(&options);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->device.deterministic, deterministic);
    EXPECT_EQ(made->device.kind, DeviceKind::cuda);
  }
}

TEST(Parameters, OptionsOfVersion1AreReadToTheirEnd) {
  EngineOptions options{};
  options.struct_size = 56;
  options.max_batch = 7;
  options.inter_token_ms_max = 40;
  options.deterministic = 1;  // what happens to lie behind a caller's 56 bytes
  const Result<RuntimeOptions> made = runtime_options(&options);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->sequences_max, 7);
  EXPECT_EQ(made->inter_token_ms_max, 40);
  EXPECT_FALSE(made->device.deterministic);
}

TEST(Parameters, SizesOfNoVersionAreRefused) {
  EngineOptions options{};
  for (std::uint32_t size = 0; size < 128; ++size) {
    options.struct_size = size;
    const Result<RuntimeOptions> made = runtime_options(&options);
    EXPECT_EQ(made.ok(), size == 56 || size == 60) << size;
    if (!made.ok()) {
      EXPECT_EQ(made.error().code, ErrorCode::unsupported);
    }
  }
}

}  // namespace
}  // namespace koho::capi
