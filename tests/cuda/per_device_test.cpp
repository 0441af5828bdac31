// SPDX-License-Identifier: Apache-2.0
// Facts of kernels are kept for each GPU apart. No GPU: the test says which one is current.
#include "cuda/device/per_device.h"

#include <gtest/gtest.h>

namespace {
int current = 0;
}

// The linker has koho call this (CMakeLists.txt).
extern "C" cudaError_t __wrap_cudaGetDevice(int* device) {
  *device = current;
  return current < 0 ? cudaErrorNoDevice : cudaSuccess;
}

namespace koho::cuda {
namespace {

TEST(PerDevice, AsksOnceOnEachGpu) {
  PerDevice facts;
  int asked = 0;
  const auto find = [&] {
    ++asked;
    return 10 + current;
  };
  for (const int device : {0, 1, 0, 7, 1, 0, 7}) {
    current = device;
    EXPECT_EQ(facts.number(find), 10 + device);
  }
  EXPECT_EQ(asked, 3);
}

TEST(PerDevice, AsksAgainWhereItFailed) {
  PerDevice prepared;
  int made = 0;
  cudaError_t answer = cudaErrorMemoryAllocation;
  const auto make = [&] {
    ++made;
    return answer;
  };
  current = 1;
  EXPECT_EQ(prepared.once(make), cudaErrorMemoryAllocation);
  EXPECT_EQ(prepared.once(make), cudaErrorMemoryAllocation);
  answer = cudaSuccess;
  EXPECT_EQ(prepared.once(make), cudaSuccess);
  EXPECT_EQ(prepared.once(make), cudaSuccess);
  EXPECT_EQ(made, 3);
  current = 0;  // the other GPU has not been asked
  EXPECT_EQ(prepared.once(make), cudaSuccess);
  EXPECT_EQ(made, 4);
}

TEST(PerDevice, AFailureKeepsWhatAnotherHasFoundMeanwhile) {
  PerDevice facts;
  current = 2;
  EXPECT_EQ(facts.number([&] {
    EXPECT_EQ(facts.number([] { return 5; }), 5);
    return 0;
  }),
            0);
  EXPECT_EQ(facts.number([] { return 6; }), 5);
}

TEST(PerDevice, AsksEachTimeWhereItCannotKeep) {
  for (const int device : {-1, 16, 1000}) {
    PerDevice facts;
    int asked = 0;
    current = device;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(facts.number([&] { return ++asked; }), i + 1);
  }
}

}  // namespace
}  // namespace koho::cuda
