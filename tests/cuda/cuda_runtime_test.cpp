// SPDX-License-Identifier: Apache-2.0
// Which GPUs are refused, and in which words, without a GPU; and with one, that all kernels can be
// loaded.
#include <gtest/gtest.h>

#include "cuda/device/runtime.h"

namespace koho::cuda {
namespace {

TEST(CheckCapability, RefusesOlderAndOtherGpusByNameAndNeed) {
  for (const DeviceInfo& device :
       {DeviceInfo{.name = "NVIDIA A100-SXM4-80GB", .major = 8, .minor = 0},
        DeviceInfo{.name = "NVIDIA L40S", .major = 8, .minor = 9},
        DeviceInfo{.name = "NVIDIA RTX PRO 6000", .major = 12, .minor = 0}}) {
    const Status status = check_capability(device);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::unsupported);
    const std::string& message = status.error().message;
    EXPECT_NE(message.find(device.name), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(device.major) + "." + std::to_string(device.minor)),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("9.0"), std::string::npos) << message;
  }
}

constexpr const char* kUsual = "90a-real 100f-real";  // CMakeLists.txt

TEST(CheckCapability, TakesHopperAndBlackwell) {
  EXPECT_TRUE(check_capability({.name = "NVIDIA H200", .major = 9, .minor = 0}, kUsual).ok());
  EXPECT_TRUE(check_capability({.name = "NVIDIA B200", .major = 10, .minor = 0}, kUsual).ok());
  EXPECT_TRUE(check_capability({.name = "NVIDIA B300", .major = 10, .minor = 3}, kUsual).ok());
}

TEST(CheckCapability, NamesTheCardAndWhatTheBuildHasWhereItHasNoKernelsForIt) {
  const DeviceInfo b300{.name = "NVIDIA B300", .major = 10, .minor = 3};
  const char* const without = "90a-real 100a-real";
  const Status status = check_capability(b300, without);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unsupported);
  const std::string& message = status.error().message;
  for (const char* part : {"NVIDIA B300", "10.3", without, "-DKOHO_CUDA_ARCHITECTURES=103a-real"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(CheckCapability, KnowsWhichCodeRunsWhere) {
  const DeviceInfo h200{.name = "NVIDIA H200", .major = 9, .minor = 0};
  const DeviceInfo b200{.name = "NVIDIA B200", .major = 10, .minor = 0};
  const DeviceInfo b300{.name = "NVIDIA B300", .major = 10, .minor = 3};
  const auto takes = [](const DeviceInfo& device, std::string_view architectures) {
    return check_capability(device, architectures).ok();
  };
  EXPECT_TRUE(takes(b300, "90a-real 103a-real"));
  EXPECT_FALSE(takes(b200, "90a-real 103a-real"));
  EXPECT_FALSE(takes(h200, "100a-real"));
  EXPECT_FALSE(takes(b200, "90a-real"));
  EXPECT_TRUE(takes(b300, "100f-real"));
  EXPECT_TRUE(takes(b300, "100-real"));
  EXPECT_FALSE(takes(b200, "103-real"));
  EXPECT_FALSE(takes(b200, "90-real"));
  EXPECT_TRUE(takes(b200, "90-virtual"));
  EXPECT_TRUE(takes(b200, "90"));
  EXPECT_FALSE(takes(h200, "100-virtual"));
  EXPECT_FALSE(takes(b200, "90a-virtual"));
  EXPECT_FALSE(takes(h200, ""));
  EXPECT_TRUE(takes(h200, "native"));
}

TEST(CheckCapability, KnowsWhatThisBuildIsFor) {
  EXPECT_NE(compiled_architectures(), "");
}

TEST(CheckExists, ANumberThatNoGpuHasIsNotFound) {
  for (const int index : {-1, 1000}) {
    const Status status = check_exists(index);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::not_found);
    EXPECT_NE(status.error().message.find("GPU " + std::to_string(index) + " does not exist"),
              std::string::npos)
        << status.error().message;
  }
}

TEST(LoadKernels, LoadsEachOnce) {
  const Result<DeviceInfo> device = open_device(0);
  if (!device.ok() && device.error().code == ErrorCode::not_found) GTEST_SKIP() << "no GPU";
  ASSERT_TRUE(device.ok()) << device.error().message;
  const Result<int> first = load_kernels(device->hopper());
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_GT(*first, 26);  // more than one a file; none where CUDA is told to load eagerly
  const Result<int> again = load_kernels(device->hopper());
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, 0);
}

}  // namespace
}  // namespace koho::cuda
