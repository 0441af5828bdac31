// SPDX-License-Identifier: Apache-2.0
// Runs the one list of operator cases on the CPU backend, with every instruction set this machine
// has, which share shapes, operands and references, and one and two threads. KOHO_OP_SEED sets the
// first seed, KOHO_OP_ROUNDS how many follow;
// KOHO_OP_ROUNDS_DEFAULT is 12, of large cases 1; 4 and 1 under AddressSanitizer, where large
// cases have every second instruction set and those that fill a GPU none: tools/nightly.py runs all
// of it, in 48 rounds.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bench/operators/device_array.h"
#include "bench/operators/random.h"
#include "cpu/cpu_backend.h"
#include "ops/captured_backend.h"
#include "ops/op_cases.h"
#include "ops/reference.h"
#include "support/environment.h"

namespace koho::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Shapes whose rows fill a GPU's multiprocessors: on a CPU they are many times a smaller case.
bool fills_gpu(const std::string& name) {
  return name.starts_with("linear_") &&
         (name.find("_wide") != name.npos || name.ends_with("_prompt"));
}

class CpuOperator : public ::testing::TestWithParam<std::size_t> {};

// One shape, its operands and its reference for every instruction set.
TEST_P(CpuOperator, MatchesItsFloat64Reference) {
  const OpCase& op_case = op_cases()[GetParam()];
  const std::uint64_t first = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  const std::uint64_t rounds_default =
      op_case.is_large ? KOHO_OP_LARGE_ROUNDS_DEFAULT : KOHO_OP_ROUNDS_DEFAULT;
  const std::uint64_t rounds =
      std::min(op_case.rounds_max, number_from_environment("KOHO_OP_ROUNDS", rounds_default, 1));
  const bool brief = kSanitized && op_case.is_large && std::getenv("KOHO_OP_ROUNDS") == nullptr;
  if (brief && fills_gpu(op_case.name)) GTEST_SKIP() << "KOHO_OP_ROUNDS=1 runs it";
  // The plain loops would take ten seconds for the end of the longest prompt.
  const bool plain = !op_case.name.starts_with("attention_prompt_of");
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t seed = first + round;
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Backend*> all;
    for (const CpuIsa isa : supported_cpu_isas()) {
      if (isa == CpuIsa::scalar && !plain) continue;
      if (brief && (seed + static_cast<std::uint64_t>(isa)) % 2 == 1) continue;
      // One round of a large case has one thread with every second instruction set, else two.
      const std::uint64_t turn = seed / 2 + static_cast<std::uint64_t>(isa);
      Result<std::unique_ptr<Backend>> backend =
          make_cpu_backend({.threads = 1 + static_cast<int>(turn % 2), .isa = isa});
      ASSERT_TRUE(backend.ok()) << backend.error().message;
      backends.push_back(std::move(*backend));
      all.push_back(backends.back().get());
    }
    if (all.empty()) continue;  // no other instruction set here
    ASSERT_EQ(op_case.run_on(all, seed, {}), "") << op_case.name << ", KOHO_OP_SEED=" << seed;
  }
}

TEST(CpuOperatorCaptured, MatchesItsFloat64Reference) {
  Result<std::unique_ptr<Backend>> backend = make_cpu_backend({.threads = 2});
  ASSERT_TRUE(backend.ok()) << backend.error().message;
  CapturedBackend captured(std::move(*backend));
  const std::uint64_t seed = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  for (const OpCase& op_case : op_cases()) {
    if (op_case.is_large) continue;
    EXPECT_EQ(op_case.run(captured, seed, {}), "") << op_case.name << ", KOHO_OP_SEED=" << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         CpuOperator,
                         ::testing::Range<std::size_t>(0, op_cases().size()),
                         [](const ::testing::TestParamInfo<std::size_t>& one) {
                           return op_cases()[one.param].name;
                         });

TEST(OperatorContract, QueriesAndProjectionsHaveOneFormTheSame) {
  Result<std::unique_ptr<Backend>> made = make_cpu_backend({.threads = 1});
  ASSERT_TRUE(made.ok());
  Backend& backend = **made;
  constexpr HeadShape kHeads{2, 1, 16, 8};
  const HostTensor zero_ids(DType::i32, {1});
  const DeviceArray positions(backend, zero_ids);
  const DeviceArray slots(backend, integers(DType::i64, {-1}));
  const DeviceArray table(backend, HostTensor(DType::f32, {1, 2, 4}));
  const DeviceArray pages(backend, DType::bf16, {1, 1, kPageTokens, 16});
  const DeviceArray values(backend, HostTensor(DType::bf16, {1, 64}));
  const DeviceArray quantized(backend, HostTensor(DType::f8_e4m3, {1, 64}));
  const DeviceArray scales(backend, HostTensor(DType::f32, {1}));
  const DeviceArray block_scales(backend, HostTensor(DType::f32, {1, 1}));
  const DeviceArray q_values(backend, DType::bf16, {1, 2, 16});
  const DeviceArray q_quantized(backend, DType::f8_e4m3, {1, 2, 16});
  const DeviceArray q_scales(backend, DType::f32, {1, 2});
  QkNormRope weights;
  weights.heads = kHeads;
  weights.rope_table = table.view();
  const auto found = [&](const Queries& q, const Activation& qkv) {
    const Status status = backend.qk_norm_rope_store_kv(
        q, {pages.view(), pages.view(), {}, {}}, qkv, positions.view(), slots.view(), weights);
    return status.ok() ? std::string_view("ok") : error_code_info(status.error().code).name;
  };
  const Queries as_values{.values = q_values.view()};
  const Queries as_quantized{.quantized = q_quantized.view(), .scales = q_scales.view()};
  const Activation from_values{.values = values.view()};
  const Activation from_quantized{.quantized = quantized.view(), .scales = scales.view()};
  EXPECT_EQ(found(as_values, from_values), "ok");
  EXPECT_EQ(found(as_quantized, from_quantized), "ok");
  const Queries both{q_values.view(), q_quantized.view(), q_scales.view()};
  const Activation from_both{
      .values = values.view(), .quantized = quantized.view(), .scales = scales.view()};
  Activation with_blocks = from_quantized;
  with_blocks.block_quantized = quantized.view();
  with_blocks.block_scales = block_scales.view();
  const struct {
    const char* what;
    Queries q;
    Activation qkv;
  } refused[] = {
      {"quantised values from values", as_quantized, from_values},
      {"values from quantised values", as_values, from_quantized},
      {"both forms of q", both, from_quantized},
      {"both forms of q from values", both, from_values},
      {"both forms of qkv", as_quantized, from_both},
      {"no form of q", {}, from_values},
      {"no form of q from quantised values", {}, from_quantized},
      {"no form of qkv", as_values, {}},
      {"no form at all", {}, {}},
      {"quantised values by block", as_quantized, with_blocks},
      {"quantised values of q without scales", {.quantized = q_quantized.view()}, from_quantized},
      {"scales of q a token each",
       {.quantized = q_quantized.view(), .scales = scales.view()},
       from_quantized},
      {"quantised values of qkv without scales", as_quantized, {.quantized = quantized.view()}}};
  for (const auto& one : refused) EXPECT_EQ(found(one.q, one.qkv), "invalid_argument") << one.what;
}

TEST(GuardBands, FindEveryByteThatIsWrittenOutsideTheRows) {
  Result<std::unique_ptr<Backend>> made = make_cpu_backend({.threads = 1});
  ASSERT_TRUE(made.ok());
  constexpr std::int64_t kGuardBytes = 4096;
  for (const std::int64_t gap : {0, 2}) {
    const DeviceArray array(**made, DType::bf16, {3, 5}, gap);
    const std::int64_t stride = (5 + gap) * 2;
    auto* const data = static_cast<std::byte*>(array.view().data);
    for (std::int64_t i = -kGuardBytes; i < std::max<std::int64_t>(3 * stride, 64) + kGuardBytes;
         ++i) {
      const bool inside = i >= 0 && i < 3 * stride && i % stride < 10;
      const std::byte before = std::exchange(data[i], std::byte{0});
      const std::string fault = array.guard_fault("x");
      data[i] = before;
      EXPECT_EQ(fault.find("x: byte " + std::to_string(i) + " of ") == 0, !inside) << fault << i;
    }
  }
}

TEST(CpuMemory, ReserveCoversRoutersOfManyChoices) {
  constexpr std::int64_t kTokens = 600;
  constexpr std::int64_t kHidden = 64;
  constexpr std::int64_t kExperts = 24;
  constexpr std::int64_t kChoices = 20;
  Result<std::unique_ptr<Backend>> made = make_cpu_backend({.threads = 1});
  ASSERT_TRUE(made.ok());
  Backend& backend = **made;
  Random random(1);
  const SyntheticLinear matrix(random, WeightQuant::none, kHidden, kHidden, false);
  ExpertsSource source;
  source.experts.assign(kExperts, {matrix.source(), matrix.source(), matrix.source()});
  Result<Experts> placed = backend.place_experts(source);
  ASSERT_TRUE(placed.ok());
  ASSERT_TRUE(backend
                  .reserve({.tokens_max = kTokens,
                            .sequences_max = 1,
                            .context_max = 1,
                            .logit_rows_max = 1,
                            .vocabulary = 1,
                            .experts_per_token = kChoices})
                  .ok());
  HostTensor ids(DType::i32, {kTokens, kChoices});
  for (std::int64_t i = 0; i < kTokens * kChoices; ++i)
    ids.set(i, static_cast<double>(i % kChoices));
  const DeviceArray ids_array(backend, ids);
  const DeviceArray weights(backend, HostTensor(DType::f32, {kTokens, kChoices}));
  const DeviceArray x(backend, HostTensor(DType::bf16, {kTokens, kHidden}));
  const DeviceArray out(backend, DType::bf16, {kTokens, kHidden});
  Activation activation;
  activation.values = x.view();
  const std::int64_t before = backend.memory_use()->held_bytes;
  ASSERT_TRUE(
      backend.experts(out.view(), activation, {ids_array.view(), weights.view()}, *placed).ok());
  EXPECT_EQ(backend.memory_use()->held_bytes, before);
}

}  // namespace
}  // namespace koho::testing
