// SPDX-License-Identifier: Apache-2.0
// What is said where CUDA refuses: no driver, one that is too old, GPUs that are not ready, memory
// that is not there, a model beyond what the kernels hold. No GPU: the test answers for the
// runtime.
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "cuda/backend.h"
#include "cuda/cuda_backend.h"
#include "cuda/device/runtime.h"
#include "worker/device.h"

namespace {

/// A machine with GPUs of which one is a small one.
struct Machine {
  cudaError_t found = cudaSuccess;  // cudaGetDeviceCount's
  int count = 2;
  int driver = 13000;
  const char* name = "NVIDIA H200";
  int major = 9;
  std::size_t memory = std::size_t{141} << 30;
  std::size_t left = 1 << 20;  // of GPU memory and of what the host can lock
  int current = 0;
  int freed_on = -1;
  bool error_kept = false;
};
Machine machine;

}  // namespace

// The linker has koho call these (CMakeLists.txt).
extern "C" {

cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = machine.found == cudaSuccess ? machine.count : 0;
  return machine.found;
}
cudaError_t __wrap_cudaDriverGetVersion(int* version) {
  *version = machine.driver;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strncpy(properties->name, machine.name, sizeof properties->name - 1);
  properties->major = machine.major;
  properties->totalGlobalMem = machine.memory;
  return cudaSuccess;
}
cudaError_t __wrap_cudaSetDevice(int device) {
  machine.current = device;
  return cudaSuccess;
}
cudaError_t __wrap_cudaMalloc(void** data, size_t bytes) {
  machine.error_kept = bytes > machine.left;
  if (machine.error_kept) return cudaErrorMemoryAllocation;
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t __wrap_cudaFree(void* data) {
  machine.freed_on = machine.current;
  std::free(data);
  return cudaSuccess;
}
cudaError_t __wrap_cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return __wrap_cudaMalloc(data, bytes);
}
cudaError_t __wrap_cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t __wrap_cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = machine.left;
  *total = machine.memory;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetLastError() {
  machine.error_kept = false;
  return cudaSuccess;
}

}  // extern "C"

namespace koho::cuda {
namespace {

class CudaErrors : public ::testing::Test {
 protected:
  CudaErrors() { machine = {}; }

  static void expect(const Status& status,
                     ErrorCode code,
                     std::initializer_list<std::string> parts) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, code);
    for (const std::string& part : parts)
      EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
  static Status opened(int index) {
    KOHO_TRY(open_device(index));
    return {};
  }
};

TEST_F(CudaErrors, NameADriverThatIsTooOldAndWhatItIsFor) {
  machine.found = cudaErrorInsufficientDriver;
  machine.driver = 12080;
  expect(opened(0), ErrorCode::unsupported, {"driver is for CUDA 12.8", "CUDA 13.", "CPU"});
}

TEST_F(CudaErrors, NameAMachineWithoutADriver) {
  machine.found = cudaErrorInsufficientDriver;
  machine.driver = 0;
  expect(opened(0), ErrorCode::not_found, {"GPU 0 does not exist: 0 found (no NVIDIA driver)"});
}

/// What is wrong with a GPU is told when it is opened; nothing asks the driver before.
TEST_F(CudaErrors, LeaveDeviceAutoTheCpuWhereThereIsNoGpu) {
  machine.found = cudaErrorInsufficientDriver;
  EXPECT_EQ(choose_device("auto", true).value(), DeviceKind::cuda);
  EXPECT_EQ(choose_device("auto", false).value(), DeviceKind::cpu);
  EXPECT_EQ(choose_device("cuda", false).value(), DeviceKind::cuda);
}

TEST_F(CudaErrors, NameAGpuThatIsNotThere) {
  expect(opened(2), ErrorCode::not_found, {"GPU 2 does not exist: 2 found"});
  machine.found = cudaErrorNoDevice;
  expect(opened(0), ErrorCode::not_found, {"GPU 0 does not exist: 0 found"});
}

/// A fault of the machine is none of "there is no GPU", upon which tests are skipped.
TEST_F(CudaErrors, NameGpusThatAreNotReady) {
  machine.found = cudaErrorSystemNotReady;
  expect(opened(0), ErrorCode::device_error, {"cudaErrorSystemNotReady", "fabric manager"});
  machine.found = cudaErrorUnknown;
  expect(opened(0), ErrorCode::device_error, {"cudaErrorUnknown", "cudaGetDeviceCount"});
}

TEST_F(CudaErrors, NameACardThatIsTooOld) {
  machine.name = "NVIDIA A100-SXM4-80GB";
  machine.major = 8;
  expect(opened(1), ErrorCode::unsupported, {"NVIDIA A100-SXM4-80GB", "8.0", "9.0"});
  EXPECT_EQ(machine.current, 0);  // not opened
}

TEST_F(CudaErrors, NameTheMemoryThatIsNotThereAndLoseNothing) {
  const auto memory = std::make_shared<DeviceMemory>(1);
  {
    const Result<DeviceBlock> fits = DeviceBlock::allocate(memory, 1000, "weights");
    ASSERT_TRUE(fits.ok());
    EXPECT_EQ(machine.current, 1);
    const Result<DeviceBlock> large = DeviceBlock::allocate(memory, 3 << 20, "scratch memory");
    ASSERT_FALSE(large.ok());
    expect(Status(large.error()), ErrorCode::resource_exhausted,
           {"GPU 1", "scratch memory needs 3145728 bytes", "1048576 of 151397597184 are free",
            "1000 are held by koho"});
    EXPECT_FALSE(machine.error_kept);
    EXPECT_EQ(memory->counts().bytes, 1000);
    EXPECT_EQ(memory->counts().allocations, 1);
    machine.current = 0;
  }
  EXPECT_EQ(machine.freed_on, 1);
  EXPECT_EQ(memory->counts().bytes, 0);
  EXPECT_EQ(memory->counts().purposes.at("weights"), 0);
}

TEST_F(CudaErrors, NameTheHostMemoryThatCannotBeLocked) {
  EXPECT_TRUE(allocate_pinned(1000, "the buffers of steps").ok());
  const Result<PinnedMemory> large = allocate_pinned(3 << 20, "the buffers of steps");
  ASSERT_FALSE(large.ok());
  expect(Status(large.error()), ErrorCode::resource_exhausted,
         {"host", "the buffers of steps needs 3145728 bytes"});
  EXPECT_FALSE(machine.error_kept);
}

TEST_F(CudaErrors, NameACallWithoutItsParameters) {
  const Error error = cuda_error(cudaErrorIllegalAddress, "launch_route({.x = x, .y = y}, stream)");
  EXPECT_EQ(error.code, ErrorCode::device_error);
  EXPECT_TRUE(error.message.ends_with("(cudaErrorIllegalAddress) from launch_route(…)"))
      << error.message;
  EXPECT_TRUE(cuda_error(cudaErrorUnknown, "cudaGraphLaunch(graph)")
                  .message.ends_with("from cudaGraphLaunch(graph)"));
}

TEST_F(CudaErrors, AskingForAGpusMemoryDoesNotOpenIt) {
  const Result<std::int64_t> bytes = cuda_memory_bytes(1);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, std::int64_t{141} << 30);
  EXPECT_EQ(machine.current, 0);
}

TEST(CheckLimits, NamesWhatAModelHasTooMuchOf) {
  StepLimits limits;
  limits.vocabulary = 151552;
  EXPECT_TRUE(check_limits(limits).ok());
  limits.vocabulary = 200000;
  const Status vocabulary = check_limits(limits);
  ASSERT_FALSE(vocabulary.ok());
  EXPECT_EQ(vocabulary.error().code, ErrorCode::unsupported);
  EXPECT_EQ(vocabulary.error().message,
            "the CUDA backend has kernels for up to 163840 tokens of a vocabulary, this model has "
            "200000: run it on the CPU");
  limits.vocabulary = 1;
  limits.experts_per_token = 33;
  EXPECT_FALSE(check_limits(limits).ok());
  limits.experts_per_token = 32;
  limits.head_width = 257;
  EXPECT_FALSE(check_limits(limits).ok());
}

}  // namespace
}  // namespace koho::cuda
