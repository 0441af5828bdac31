// SPDX-License-Identifier: Apache-2.0
#include "capi/parameters.h"

#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace koho::capi {
namespace {

TEST(Parameters, NoOptionsAreTheDefaults) {
  const Result<RuntimeOptions> made = runtime_options(nullptr);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->device.deterministic, std::nullopt);
}

TEST(Parameters, TheLastFieldOfTheOptionsIsPassedOn) {
  EngineOptions options{};
  options.struct_size = sizeof(options);
  options.num_gpus = 1;
  for (const std::optional<bool> deterministic : {std::optional<bool>(), {true}, {false}}) {
    options.deterministic = !deterministic ? 0 : *deterministic ? 1 : -1;
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
  EXPECT_EQ(made->device.deterministic, std::nullopt);
}

TEST(Parameters, SayWhereTheRanksRun) {
  EngineOptions options{};
  options.struct_size = sizeof(options);
  EXPECT_EQ(runtime_options(&options)->executor, ExecutorKind::automatic);
  options.executor = KOHO_EXECUTOR_PROCESS;
  options.worker = "/opt/koho";
  options.num_ranks = 4;
  options.step_deadline_ms = 5000;
  const Result<RuntimeOptions> on_cpu = runtime_options(&options);
  ASSERT_TRUE(on_cpu.ok());
  EXPECT_EQ(on_cpu->executor, ExecutorKind::process);
  EXPECT_EQ(on_cpu->worker, "/opt/koho");
  EXPECT_EQ(on_cpu->ranks, 4);
  EXPECT_EQ(on_cpu->step_deadline_ms, 5000);
  options.executor = 3;
  EXPECT_EQ(runtime_options(&options).error().code, ErrorCode::invalid_argument);
}

TEST(Parameters, GpusAreRanksUnlessDevicesSayOtherwise) {
  EngineOptions options{};
  options.struct_size = sizeof(options);
  options.num_gpus = 4;
  EXPECT_EQ(runtime_options(&options)->ranks, 4);
  EXPECT_TRUE(runtime_options(&options)->device.devices.empty());
  options.num_ranks = 8;
  EXPECT_EQ(runtime_options(&options).error().code, ErrorCode::invalid_argument);
  const std::vector<std::int32_t> devices{0, 0, 1, 1, 2, 2, 3, 3};
  options.devices = devices.data();
  options.num_devices = 8;
  EXPECT_EQ(runtime_options(&options)->ranks, 8);
  EXPECT_EQ(runtime_options(&options)->device.devices, devices);
  options.devices = nullptr;
  EXPECT_EQ(runtime_options(&options).error().code, ErrorCode::invalid_argument);
  options.num_devices = 0;
  options.num_gpus = 1;
  EXPECT_EQ(runtime_options(&options)->device.devices, std::vector<int>{0});
}

TEST(Parameters, SizesOfNoVersionAreRefused) {
  EngineOptions options{};
  for (std::uint32_t size = 0; size < 128; ++size) {
    options.struct_size = size;
    const Result<RuntimeOptions> made = runtime_options(&options);
    EXPECT_EQ(made.ok(), size == 56 || size == 60 || size == 88) << size;
    if (!made.ok()) {
      EXPECT_EQ(made.error().code, ErrorCode::unsupported);
    }
  }
}

}  // namespace
}  // namespace koho::capi
