// SPDX-License-Identifier: Apache-2.0
// The list of `koho bench ops`, with few tokens, on the CPU: its vector path against its plain one.
// Each case must find the results right, and wrong when one element of any of them is spoiled, or
// nothing was computed.
#include "bench/operator_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "bench/operator_check.h"
#include "cpu/cpu_backend.h"
#include "ops/trace.h"

namespace koho::bench {
namespace {

constexpr std::int64_t kTokensMax = 64;

/// Indices of the cases that a CPU runs in a second or so.
std::vector<std::size_t> small_cases() {
  std::vector<std::size_t> found;
  const std::vector<OperatorCase>& cases = operator_cases();
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (!cases[i].tokens.empty() && !cases[i].is_large) found.push_back(i);
  return found;
}

/// Its fewest tokens, and those of a small batch.
std::vector<std::int64_t> few_tokens(const OperatorCase& bench_case) {
  std::vector<std::int64_t> tokens{bench_case.tokens.front()};
  for (const std::int64_t count : bench_case.tokens)
    if (tokens.size() == 1 && count >= 8 && count <= kTokensMax) tokens.push_back(count);
  return tokens;
}

/// Turns the sign of the largest of the first `count` numbers, or makes 2 of a zero; whole numbers
/// change by one.
void spoil(const TensorView& view, std::int64_t count) {
  const auto size = static_cast<std::size_t>(dtype_bytes(view.dtype));
  const bool number =
      view.dtype == DType::f8_e4m3 || view.dtype == DType::bf16 || view.dtype == DType::f32;
  if (!number) {
    view.data[0] ^= std::byte{1};
    return;
  }
  // Magnitudes of all these formats are in the order of their bits.
  const auto magnitude = [&](std::int64_t i) {
    std::uint32_t bits = 0;
    for (std::size_t byte = size; byte-- > 0;)
      bits = bits << 8U |
             std::to_integer<std::uint32_t>(view.data[static_cast<std::size_t>(i) * size + byte]);
    return bits & ((1U << (8U * size - 1U)) - 1U);
  };
  std::int64_t largest = 0;
  for (std::int64_t i = 1; i < count; ++i)
    if (magnitude(i) > magnitude(largest)) largest = i;
  const std::byte bit = magnitude(largest) > 0 ? std::byte{0x80} : std::byte{0x40};
  view.data[static_cast<std::size_t>(largest + 1) * size - 1] ^= bit;
}

class OperatorBench : public ::testing::TestWithParam<std::size_t> {
 protected:
  static Backend& backend(Side side) {
    static std::unique_ptr<Backend> backends[2];
    std::unique_ptr<Backend>& found = backends[static_cast<int>(side)];
    if (found == nullptr) {
      Result<std::unique_ptr<Backend>> made = make_cpu_backend(
          {.threads = 2, .isa = side == Side::measured ? CpuIsa::automatic : CpuIsa::scalar});
      KOHO_CHECK(made.ok());
      found = std::move(*made);
    }
    return *found;
  }
  const BenchBackends site_{backend(Side::measured), &backend(Side::reference), 0.0};
};

TEST_P(OperatorBench, IsRightAndFindsWrongResults) {
  const OperatorCase bench_case = operator_cases()[GetParam()];
  const Result<std::vector<OperatorRun>> built = bench_case.build(site_, few_tokens(bench_case));
  ASSERT_TRUE(built.ok()) << built.error().message;
  for (const OperatorRun& bench : *built) {
    SCOPED_TRACE(bench.op + ", tokens " + std::to_string(bench.shape.at("tokens")));
    EXPECT_GT(bench.bytes, 0.0);
    const Result<CheckResult> right = check_operator(site_, bench);
    ASSERT_TRUE(right.ok()) << right.error().message;
    EXPECT_EQ(right->fault, "");
    EXPECT_LE(right->largest, 1.0);
    EXPECT_GT(right->rows, 0);

    const auto check_with = [&](const std::function<Status()>& instead) {
      OperatorRun spoiled = bench;
      spoiled.run = [&](Side side, RowRange rows, std::int64_t i) {
        return side == Side::measured ? instead() : bench.run(side, rows, i);
      };
      const Result<CheckResult> found = check_operator(site_, spoiled);
      EXPECT_TRUE(found.ok());
      return found.ok() ? found->fault : "";
    };
    EXPECT_NE(check_with([] { return Status(); }), "") << "nothing was computed";
    if (bench.flops > 1e10) continue;  // computed once
    for (const OpOutput& output : bench.outputs) {
      const TensorView& view = output.view.measured;
      const std::int64_t row =
          output.row_elements > 0 ? output.row_elements : view.elements() / view.size(0);
      const auto spoiled = [&](const TensorView& part, std::int64_t count) {
        return check_with([&]() -> Status {
          KOHO_TRY(bench.run(Side::measured, {0, bench.rows}, 0));
          spoil(part, count);
          return {};
        });
      };
      EXPECT_NE(spoiled(view, row), "") << output.name;
      if (output.scales.measured.empty()) continue;
      EXPECT_NE(spoiled(output.scales.measured, 1), "") << output.name << " scales";
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<std::size_t>& index) {
  return operator_cases()[index.param].name;
}

INSTANTIATE_TEST_SUITE_P(All, OperatorBench, ::testing::ValuesIn(small_cases()), case_name);

/// Of those that are not large, with a model's shapes and with random ones.
TEST(OperatorCases, EveryOperatorHasModelShapesAndRandomShapes) {
  // The names of a trace are those of the interface; attention is two.
  std::set<std::string> with_model{"attention_decode", "attention_prefill"};
  for (std::size_t op = 0; op <= static_cast<std::size_t>(Op::count_sampled); ++op)
    with_model.insert(std::string(op_name(static_cast<Op>(op))));
  with_model.erase("attention");
  std::set<std::string> with_random = with_model;
  Result<std::unique_ptr<Backend>> backend = make_cpu_backend({.threads = 2});
  ASSERT_TRUE(backend.ok());
  const BenchBackends site{**backend, backend->get(), 0.0};
  for (const OperatorCase& one : operator_cases()) {
    if (one.is_large) continue;
    if (!one.tokens.empty()) {
      const Result<std::vector<OperatorRun>> built = one.build(site, {one.tokens.front()});
      ASSERT_TRUE(built.ok()) << built.error().message;
      for (const OperatorRun& run : *built) with_model.erase(run.op);
    }
    for (std::uint64_t seed = 0; one.build_random != nullptr && seed < 8; ++seed) {
      const Result<OperatorRun> run =
          one.build_random(std::make_shared<Operands>(std::vector<Backend*>{backend->get()}, seed));
      ASSERT_TRUE(run.ok()) << run.error().message;
      with_random.erase(run->op);
    }
  }
  EXPECT_EQ(with_model, std::set<std::string>());
  EXPECT_EQ(with_random, std::set<std::string>());
}

TEST(OperatorBenchCeilings, AreThoseOfTheDevice) {
  EXPECT_EQ(ceilings_of("NVIDIA H200", 4.8e12).bytes_per_second, 4.45e12);
  EXPECT_EQ(ceilings_of("NVIDIA B200", 0.0).bytes_per_second, 8.0e12);
  const Ceilings unknown = ceilings_of("NVIDIA GH200 480GB", 4.0e12);
  EXPECT_EQ(unknown.bytes_per_second, 4.0e12);
  EXPECT_EQ(unknown.fp8_per_second, 0.0);
  EXPECT_NE(unknown.source, ceilings_of("NVIDIA H200", 0.0).source);
  EXPECT_EQ(ceilings_of("", 0.0).bytes_per_second, 0.0);
}

}  // namespace
}  // namespace koho::bench
