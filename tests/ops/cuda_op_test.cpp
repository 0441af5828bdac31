// SPDX-License-Identifier: Apache-2.0
// Runs the one list of operator cases on the CUDA backend: with Hopper's kernels where the GPU has
// them, the same captured in CUDA graphs, with those of the deterministic mode, and with the
// portable ones alone. KOHO_OP_SEED sets the first seed, KOHO_OP_ROUNDS how many follow. Without a
// GPU the cases are skipped and say so.
#include <cmath>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "ops/op_cases.h"
#include "ops/recorded_backend.h"

namespace koho::testing {
namespace {

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

enum class Mode { fast, deterministic, portable, recorded };
using Parameters = std::tuple<Mode, std::size_t>;

class CudaOperator : public ::testing::TestWithParam<Parameters> {
 protected:
  static Backend* backend(Mode mode) {
    static std::unique_ptr<Backend> backends[4];
    std::unique_ptr<Backend>& found = backends[static_cast<int>(mode)];
    if (found != nullptr) return found.get();
    Result<std::unique_ptr<Backend>> opened = make_cuda_backend(
        {.portable_only = mode == Mode::portable, .deterministic = mode == Mode::deterministic});
    if (!opened.ok()) {
      EXPECT_EQ(opened.error().code, ErrorCode::not_found) << opened.error().message;
      return nullptr;
    }
    found = std::move(*opened);
    if (mode == Mode::recorded) found = std::make_unique<RecordedBackend>(std::move(found));
    return found.get();
  }
};

TEST_P(CudaOperator, EqualsItsFloat64Twin) {
  const auto [mode, index] = GetParam();
  const bool portable = mode == Mode::portable;
  Backend* cuda = backend(mode);
  if (cuda == nullptr) GTEST_SKIP() << "no GPU";
  const OpCase& op_case = op_cases()[index];
  const std::uint64_t first = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  const std::uint64_t rounds = number_from_environment("KOHO_OP_ROUNDS", 12);
  // One FP8 wgmma aligns its 32 products and its sum to the largest of them and drops what lies
  // more than 13 bits below: each of 33 terms loses less than 2^-13 of it (docs/kernels).
  constexpr double kWgmmaError = 33.0 / 8192.0;
  const double instruction_error = std::sqrt(33.0 / 3.0) / 8192.0;  // each uniform up to that
  // Half a unit of a weight of at least 2^14 exp(-1/128), and 2^-18 for the exponential of its bin
  // (src/cuda/sample.cuh).
  const double sampling_error = 0x1p-15 * std::exp(1.0 / 128.0) + 0x1p-18;
  const OpCaseOptions options{.batch_invariant = true,
                              .many_as_few = mode != Mode::fast && mode != Mode::recorded,
                              .accumulation_error = portable ? 4e-6 : kWgmmaError,
                              .attention_weight_error = 0x1p-8,
                              .attention_weight_step = 0x1p-38,
                              .sampling_weight_error = sampling_error,
                              .decode_as_prefill = mode == Mode::deterministic,
                              .instruction_error = portable ? 0.0 : instruction_error};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::string faults = op_case.run(*cuda, first + round, options);
    ASSERT_EQ(faults, "") << op_case.name << " on " << cuda->description()
                          << ", KOHO_OP_SEED=" << first + round;
  }
}

/// Every case in the fast mode, recorded or not, and in the portable mode; in the deterministic one
/// those it gives to other kernels.
std::vector<Parameters> parameters() {
  std::vector<Parameters> found;
  for (const Mode mode : {Mode::fast, Mode::recorded, Mode::deterministic, Mode::portable}) {
    for (std::size_t i = 0; i < op_cases().size(); ++i) {
      const std::string& name = op_cases()[i].name;
      const bool others = name.starts_with("linear") || name.starts_with("experts") ||
                          name.starts_with("sample") || name.starts_with("attention");
      if (mode != Mode::deterministic || others) found.emplace_back(mode, i);
    }
  }
  return found;
}

std::string case_name(const ::testing::TestParamInfo<Parameters>& info) {
  constexpr const char* kModes[] = {"", "deterministic_", "portable_", "recorded_"};
  return kModes[static_cast<int>(std::get<0>(info.param))] +
         op_cases()[std::get<1>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(All, CudaOperator, ::testing::ValuesIn(parameters()), case_name);

}  // namespace
}  // namespace koho::testing
