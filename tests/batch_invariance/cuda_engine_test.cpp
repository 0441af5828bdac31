// SPDX-License-Identifier: Apache-2.0
// The engine on a GPU: a request's tokens and logprobs do not
// depend on what else is in the batch, bit for bit, as on the CPU; with cuBLASLt, how many do is
// counted and printed. Thousands of steps leave device memory as it was. Skipped without a GPU.
#include <atomic>
#include <cstdio>
#include <optional>

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "tests/batch_invariance/batching_cases.h"
#include "tests/batch_invariance/soak_engine.h"
#include "tests/support/resident_memory.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_checkpoint.h"

namespace koho::testing {
namespace {

class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<std::unique_ptr<Backend>> probe = make_cuda_backend({.self_test = false});
    if (!probe.ok() && probe.error().code == ErrorCode::not_found) GTEST_SKIP() << "no GPU";
  }
};

/// What asks for batch invariance: on Hopper nothing.
std::optional<bool> asked() {
  const Result<CudaProperties> properties = cuda_properties(0);
  EXPECT_TRUE(properties.ok()) << properties.error().message;
  return properties.ok() && properties->compute_capability == 90 ? std::nullopt
                                                                 : std::optional(true);
}

using CudaBatchInvariance = CudaEngine;
using CudaLeak = CudaEngine;

TEST_F(CudaBatchInvariance, Holds) {
  compare({.device = DeviceKind::cuda, .deterministic = asked()}, is_full_run());
}

TEST_F(CudaBatchInvariance, HoldsWithFp8Pages) {
  compare({.device = DeviceKind::cuda,
           .deterministic = asked(),
           .kv_dtype = DType::f8_e4m3,
           .requests = kRequestsFew},
          false);
}

TEST_F(CudaBatchInvariance, DifferencesAreCountedOutsideTheDeterministicMode) {
  compare({.device = DeviceKind::cuda, .deterministic = false}, is_full_run(), true);
}

TEST_F(CudaLeak, TenThousandStepsLeaveDeviceMemoryAsItWas) {
  const TemporaryDirectory directory;
  write_checkpoint(directory.path(), {});
  std::atomic<bool> stepping{false};
  const auto engine = SoakEngine::open(
      directory.path(), [] { return make_cuda_backend({}); }, stepping);
  ASSERT_NE(engine, nullptr);
  constexpr std::int64_t kSteps = 10'000;
  engine->run(kSteps / 2);  // every size of batch has been captured
  const Result<MemoryUse> before = engine->backend().memory_use();
  ASSERT_TRUE(before.ok()) << before.error().message;
  const Statistics statistics = engine->loop().statistics();
  const std::int64_t requests = engine->requests();
  const long resident = resident_kib();
  engine->run(kSteps);
  const Result<MemoryUse> after = engine->backend().memory_use();
  ASSERT_TRUE(after.ok()) << after.error().message;
  EXPECT_EQ(after->allocations, before->allocations);
  EXPECT_EQ(after->held_bytes, before->held_bytes);
  EXPECT_EQ(after->free_bytes, before->free_bytes);
  EXPECT_LE(resident_kib(), resident + resident / 50) << "resident memory in KiB";
  expect_all_kinds_of_work(statistics, engine->loop().statistics(), engine->requests() - requests);
  std::printf("%lld bytes held, %ld -> %ld KiB resident\n",
              static_cast<long long>(after->held_bytes), resident, resident_kib());
}

}  // namespace
}  // namespace koho::testing
