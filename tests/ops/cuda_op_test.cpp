// SPDX-License-Identifier: Apache-2.0
// Runs the one list of operator cases on the CUDA backend: with Hopper's kernels where the GPU has
// them, the same captured in CUDA graphs, with those of the deterministic mode, with the portable
// ones and cuBLASLt as it is on other GPUs, and with the portable ones alone. KOHO_OP_SEED sets the
// first seed, KOHO_OP_ROUNDS how many follow. Then two GPUs in one process. Without a GPU the cases
// are skipped and say so. What takes over where the self-test finds a fast path wrong:
// tests/cuda/self_test_test.cpp.
#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "ops/captured_backend.h"
#include "ops/op_cases.h"
#include "support/environment.h"

namespace koho::testing {
namespace {

enum class Mode { fast, deterministic, portable, portable_deterministic, captured };
using Parameters = std::tuple<Mode, std::size_t>;

// One FP8 wgmma aligns its 32 products and its sum to the largest of them and drops what lies
// more than 13 bits below: each of 33 terms loses less than 2^-13 of it (docs/kernels).
constexpr double kWgmmaError = 33.0 / 8192.0;
// One of bf16, 16 products and the sum before, drops less than a unit in the sum's last place.
constexpr double kChainError = 0x1p-23;
constexpr double kF32Error = OpCaseOptions{}.accumulation_error;

/// What the backend promises of a case.
OpCaseOptions promises(Mode mode, const std::string& name) {
  const bool portable = mode == Mode::portable || mode == Mode::portable_deterministic;
  const bool deterministic = mode == Mode::deterministic || mode == Mode::portable_deterministic;
  const double instruction_error = std::sqrt(33.0 / 3.0) / 8192.0;  // each uniform up to that
  // Half a unit of a weight of at least 2^14 exp(-1/128), and 2^-18 for the exponential of its bin
  // (src/cuda/sampling/sample.cuh).
  const double sampling_error = 0x1p-15 * std::exp(1.0 / 128.0) + 0x1p-18;
  // On Hopper cuBLASLt multiplies FP8 on wgmma in every mode.
  const bool library = mode == Mode::portable && name.starts_with("linear");
  return {.batch_invariant = true,
          .large_batch_invariant = deterministic,
          .accumulation_error = portable && !library ? kF32Error : kWgmmaError,
          .chain_error = kChainError,
          .attention_weight_error = 0x1p-8,
          .attention_weight_step = 0x1p-38,
          .sampling_weight_error = sampling_error,
          // 16 parts of two chains each; the plain form has more.
          .router_chains = 32.0,
          .decode_matches_prefill = false,
          .instruction_error = portable ? 0.0 : instruction_error};
}

class CudaOperator : public ::testing::TestWithParam<Parameters> {
 protected:
  static Backend* backend(Mode mode) {
    static std::unique_ptr<Backend> backends[5];
    std::unique_ptr<Backend>& found = backends[static_cast<int>(mode)];
    if (found != nullptr) return found.get();
    Result<std::unique_ptr<Backend>> opened = make_cuda_backend(
        {.portable_only = mode == Mode::portable || mode == Mode::portable_deterministic,
         .deterministic = mode == Mode::deterministic || mode == Mode::portable_deterministic});
    if (!opened.ok()) {
      EXPECT_EQ(opened.error().code, ErrorCode::not_found) << opened.error().message;
      return nullptr;
    }
    found = std::move(*opened);
    if (mode == Mode::captured) found = std::make_unique<CapturedBackend>(std::move(found));
    return found.get();
  }
};

TEST_P(CudaOperator, MatchesItsFloat64Reference) {
  const auto [mode, index] = GetParam();
  Backend* cuda = backend(mode);
  if (cuda == nullptr) GTEST_SKIP() << "no GPU";
  const OpCase& op_case = op_cases()[index];
  const std::uint64_t first = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  const std::uint64_t rounds =
      std::min(op_case.rounds_max, number_from_environment("KOHO_OP_ROUNDS", 12, 1));
  const OpCaseOptions options = promises(mode, op_case.name);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::string faults = op_case.run(*cuda, first + round, options);
    ASSERT_EQ(faults, "") << op_case.name << " on " << cuda->description()
                          << ", KOHO_OP_SEED=" << first + round;
  }
}

/// Every case in the fast mode, captured or not, and in the portable mode; in the deterministic
/// modes those of operators that choose among kernels (sampling's are the same on every GPU).
std::vector<Parameters> parameters() {
  std::vector<Parameters> found;
  for (const Mode mode : {Mode::fast, Mode::captured, Mode::deterministic, Mode::portable,
                          Mode::portable_deterministic}) {
    for (std::size_t i = 0; i < op_cases().size(); ++i) {
      const std::string& name = op_cases()[i].name;
      const bool forms = name.starts_with("linear") || name.starts_with("experts") ||
                         name.starts_with("attention");
      const bool others = forms || name.starts_with("sample");
      const bool runs = mode == Mode::deterministic            ? others
                        : mode == Mode::portable_deterministic ? forms
                                                               : true;
      if (runs) found.emplace_back(mode, i);
    }
  }
  return found;
}

std::string case_name(const ::testing::TestParamInfo<Parameters>& info) {
  constexpr const char* kModes[] = {"", "deterministic_", "portable_", "portable_deterministic_",
                                    "captured_"};
  return kModes[static_cast<int>(std::get<0>(info.param))] +
         op_cases()[std::get<1>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(All, CudaOperator, ::testing::ValuesIn(parameters()), case_name);

/// What a kernel is told before its launch holds for one GPU, and a thread launches on its own GPU:
/// one thread with both, then a thread each that has opened neither, at the same time.
TEST(CudaDevices, TwoOfOneProcessRunEveryCase) {
  std::vector<std::unique_ptr<Backend>> gpus;
  // One GPU alone is not opened, which takes a minute under racecheck.
  for (const int device : {1, 0}) {
    Result<std::unique_ptr<Backend>> opened = make_cuda_backend({.device = device});
    if (!opened.ok() && opened.error().code == ErrorCode::not_found)
      GTEST_SKIP() << "fewer than two GPUs";
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    gpus.push_back(std::move(*opened));
  }
  EXPECT_EQ(gpus[0]->description(), gpus[1]->description());
  const std::uint64_t seed = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  SCOPED_TRACE("KOHO_OP_SEED=" + std::to_string(seed));
  for (const OpCase& op_case : op_cases())
    for (const std::unique_ptr<Backend>& gpu : gpus)
      EXPECT_EQ(op_case.run(*gpu, seed, promises(Mode::fast, op_case.name)), "") << op_case.name;
  std::string faults[2];
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      CapturedBackend captured(std::move(gpus[i]));
      for (const OpCase& op_case : op_cases())
        faults[i] += op_case.run(captured, seed + 1, promises(Mode::fast, op_case.name));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(faults[0] + faults[1], "");
}

}  // namespace
}  // namespace koho::testing
