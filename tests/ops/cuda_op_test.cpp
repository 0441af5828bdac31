// SPDX-License-Identifier: Apache-2.0
// Runs the one list of operator cases on the CUDA backend: with Hopper's kernels where the GPU has
// them, the same captured in CUDA graphs, with those of the deterministic mode, and with the
// portable ones alone. KOHO_OP_SEED sets the first seed, KOHO_OP_ROUNDS how many follow. Without a
// GPU the cases are skipped and say so.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "ops/compare.h"
#include "ops/device_array.h"
#include "ops/op_cases.h"
#include "ops/recorded_backend.h"
#include "ops/twin.h"

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
  const std::uint64_t rounds =
      std::min(op_case.rounds_max, number_from_environment("KOHO_OP_ROUNDS", 12));
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
                              // 16 parts of two chains each; the plain form has more.
                              .router_chains = 32.0,
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

/// An expert layer at a model's widths, as a rank holds it, and how many tokens it gets.
struct ExpertLayer {
  const char* name;
  std::int64_t hidden, ffn, first, count, total, choices;
  bool shared;
  std::int64_t tokens;
};

/// A matrix of codes of any size and sign, scaled so that what it makes of such codes is about 1.
struct WideLinear {
  HostTensor weight;
  HostTensor scale;

  WideLinear(Random& random, std::int64_t rows, std::int64_t columns)
      : weight(DType::f8_e4m3, {rows, columns}),
        scale(random_scales(
            random, DType::f32, {rows}, 0.02 / std::sqrt(static_cast<double>(columns)))) {
    for (std::byte& code : weight.bytes) {
      code = static_cast<std::byte>(random.bits() >> 56U);
      if ((code & std::byte{0x7F}) == std::byte{0x7F}) code = std::byte{0};
    }
  }
  LinearSource source() const {
    return {weight.view(), scale.view(), {}, WeightQuant::fp8_channel};
  }
};

/// One token's kernels cut their work by the number of experts and by the widths, and so do those
/// of a prompt, whose clusters have many items one after the other: what the small cases do not
/// reach.
TEST(CudaExperts, OneTokenHasTheBitsOfManyAtTrueWidths) {
  constexpr ExpertLayer kLayers[] = {
      {"GLM-4.5-Air", 4096, 1408, 0, 10, 10, 8, true, 6},
      {"GLM-4.7 on four ranks", 5120, 1536, 3, 4, 12, 8, true, 6},
      {"GLM-4.7, at most one here", 5120, 1536, 12, 2, 40, 8, false, 6},
      {"GLM-4.7 sliced in four", 5120, 384, 0, 16, 16, 8, true, 6},
      {"GLM-4.7 sliced in eight", 5120, 192, 0, 12, 12, 8, false, 6},
      {"sliced in eight, entries of up to 32 tokens", 5120, 192, 0, 12, 12, 8, true, 41},
      {"sliced in four, the same", 5120, 384, 2, 9, 16, 8, false, 50},
      {"one of eight ranks, the same", 5120, 1536, 3, 2, 12, 8, false, 45},
      {"odd widths, the same", 5204, 200, 1, 5, 10, 6, true, 39},
      {"a prompt of GLM-4.5-Air", 4096, 1408, 0, 10, 10, 8, true, 333},
      {"a prompt on one of four ranks", 5120, 1536, 3, 4, 12, 8, false, 400},
      {"a prompt, sliced in eight", 5120, 192, 0, 12, 12, 8, true, 2401},
      {"a prompt whose tokens have few experts here", 5120, 192, 3, 4, 12, 8, true, 1030}};
  Result<std::unique_ptr<Backend>> opened = make_cuda_backend({});
  if (!opened.ok()) {
    ASSERT_EQ(opened.error().code, ErrorCode::not_found) << opened.error().message;
    GTEST_SKIP() << "no GPU";
  }
  RecordedBackend backend(std::move(*opened));
  const std::uint64_t seed = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  for (const ExpertLayer& layer : kLayers) {
    SCOPED_TRACE(std::string(layer.name) + ", KOHO_OP_SEED=" + std::to_string(seed));
    Random random(seed);
    std::vector<WideLinear> matrices;
    ExpertsSource source{.first = layer.first, .total = layer.total, .experts = {}, .shared = {}};
    const std::int64_t experts = layer.count + (layer.shared ? 1 : 0);
    for (std::int64_t e = 0; e < experts; ++e) {
      matrices.emplace_back(random, layer.ffn, layer.hidden);
      matrices.emplace_back(random, layer.ffn, layer.hidden);
      matrices.emplace_back(random, layer.hidden, layer.ffn);
    }
    for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
      const MlpSource mlp{matrices[3 * e].source(), matrices[3 * e + 1].source(),
                          matrices[3 * e + 2].source()};
      if (source.experts.size() < static_cast<std::size_t>(layer.count))
        source.experts.push_back(mlp);
      else
        source.shared = mlp;
    }
    Result<Experts> placed = backend.place_experts(source);
    ASSERT_TRUE(placed.ok()) << placed.error().message;
    const std::int64_t tokens = layer.tokens;
    ASSERT_TRUE(backend
                    .reserve({.tokens_max = tokens,
                              .sequences_max = tokens,
                              .context_max = 1,
                              .logit_rows_max = 1,
                              .vocabulary = 1})
                    .ok());
    const RandomActivation x(
        random_values(random, DType::bf16, {tokens, layer.hidden}, Spread::normal));
    HostTensor ids(DType::i32, {tokens, layer.choices});
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t a = 0; a < layer.choices; ++a)
        ids.set(t * layer.choices + a, static_cast<double>((7 * a + t) % layer.total));
    const HostTensor weights = random_scales(random, DType::f32, {tokens, layer.choices}, 0.125);
    const auto run = [&](const RandomActivation& rows, const HostTensor& row_ids,
                         const HostTensor& row_weights) {
      const DeviceActivation x_array(backend, rows, placed->needs, 0);
      const DeviceArray id_array(backend, row_ids);
      const DeviceArray weight_array(backend, row_weights);
      const DeviceArray out(backend, DType::bf16, {row_ids.shape[0], layer.hidden});
      EXPECT_EQ(
          fault_of("experts", backend.experts(out.view(), x_array.view(),
                                              {id_array.view(), weight_array.view()}, *placed)),
          "");
      EXPECT_EQ(out.guard_fault("out"), "");
      return out.get();
    };
    const HostTensor all = run(x, ids, weights);
    double squares = 0.0;
    for (std::int64_t i = 0; i < all.elements(); ++i) squares += all.at(i) * all.at(i);
    EXPECT_TRUE(std::isfinite(squares));
    EXPECT_GT(squares, 0.0);
    const std::int64_t step = std::max<std::int64_t>(1, tokens / 5);
    for (std::int64_t t = 0; t < tokens; t += step)
      EXPECT_EQ(compare_bits("token " + std::to_string(t),
                             run(x.row(t), row_of(ids, t), row_of(weights, t)), row_of(all, t)),
                "");
  }
}

/// A prompt with many tiles a multiprocessor, and rows that belong to nobody: the same bits each
/// time, whichever CTA draws a tile, and the codes of what was written. What attention computes is
/// the cases' affair.
TEST(CudaAttention, LongPromptsHaveTheSameBitsEachTime) {
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kTokens = 3000;
  constexpr std::int64_t kPadding = 3;
  constexpr std::int64_t kContext = 3200;
  constexpr std::int64_t kPages = kContext / kPageTokens;
  Result<std::unique_ptr<Backend>> opened = make_cuda_backend({});
  if (!opened.ok()) {
    ASSERT_EQ(opened.error().code, ErrorCode::not_found) << opened.error().message;
    GTEST_SKIP() << "no GPU";
  }
  Backend& backend = **opened;
  constexpr std::int64_t kRows = kTokens + kPadding;
  ASSERT_TRUE(backend
                  .reserve({.tokens_max = kRows,
                            .sequences_max = 2,
                            .context_max = kContext,
                            .logit_rows_max = 1,
                            .vocabulary = 1})
                  .ok());
  const std::uint64_t seed = number_from_environment("KOHO_OP_SEED", std::random_device{}());
  const auto integers = [&](const Shape& shape, std::int64_t first, std::int64_t step) {
    HostTensor tensor(DType::i32, shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      tensor.set(i, static_cast<double>(first + i * step));
    return DeviceArray(backend, tensor);
  };
  const DeviceArray positions = integers({kRows}, kContext - kTokens, 1);
  const DeviceArray starts = integers({2}, 0, kTokens);
  const DeviceArray contexts = integers({1}, kContext, 0);
  const DeviceArray tables = integers({1, kPages}, 0, 1);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3})
    for (const std::int64_t group : {12, 16}) {
      SCOPED_TRACE("group " + std::to_string(group) + ", KOHO_OP_SEED=" + std::to_string(seed));
      Random random(seed);
      const HeadShape heads{2 * group, 2, kWidth, 64};
      const auto values = [&](const Shape& shape, DType type) {
        return random_values(random, type, shape, Spread::normal);
      };
      const DeviceArray q(backend, values({kRows, heads.query_heads, kWidth}, DType::bf16));
      const DeviceArray k(backend, values({kPages, 2, kPageTokens, kWidth}, dtype));
      const DeviceArray v(backend, values({kPages, 2, kPageTokens, kWidth}, dtype));
      const DeviceArray k_scales(backend,
                                 random_scales(random, DType::f32, {kPages, 2, kPageTokens}, 0.1));
      const DeviceArray v_scales(backend,
                                 random_scales(random, DType::f32, {kPages, 2, kPageTokens}, 0.1));
      KvLayer kv{k.view(), v.view(), {}, {}};
      if (dtype == DType::f8_e4m3) {
        kv.k_scales = k_scales.view();
        kv.v_scales = v_scales.view();
      }
      Batch batch;
      batch.tokens = kRows;
      batch.sequences = 1;
      batch.query_max = kTokens;
      batch.context_max = kContext;
      batch.positions = positions.view();
      batch.query_starts = starts.view();
      batch.context_lengths = contexts.view();
      batch.page_tables = tables.view();
      HostTensor first;
      for (int time = 0; time < 3; ++time) {
        const DeviceActivation out(backend, kRows, heads.query_heads * kWidth,
                                   {.values = true, .per_token = true});
        EXPECT_EQ(fault_of("attention", backend.attention(out.view(), q.view(), kv, batch, heads)),
                  "");
        EXPECT_EQ(out.check_quantised("out") + out.guard_fault("out"), "");
        const HostTensor got = out.values.get();
        for (std::int64_t i = kTokens * heads.query_heads * kWidth; i < got.elements(); ++i)
          ASSERT_EQ(got.at(i), 0.0);
        if (time == 0)
          first = got;
        else
          EXPECT_EQ(compare_bits("once more", got, first), "");
      }
    }
}

}  // namespace
}  // namespace koho::testing
