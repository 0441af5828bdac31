// SPDX-License-Identifier: Apache-2.0
// Runs the one list of operator cases on the CUDA backend: with Hopper's kernels where the GPU has
// them, the same captured in CUDA graphs, with those of the deterministic mode, with the portable
// ones and cuBLASLt as it is on other GPUs, and with the portable ones alone. KOHO_OP_SEED sets the
// first seed, KOHO_OP_ROUNDS how many follow. Then two GPUs in one process. Without a GPU the cases
// are skipped and say so.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "cuda/cuda_backend.h"
#include "ops/captured_backend.h"
#include "ops/compare.h"
#include "ops/device_array.h"
#include "ops/op_cases.h"
#include "ops/reference.h"
#include "support/environment.h"
#include "support/step_limits.h"

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
          .decode_matches_prefill = deterministic,
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

/// A CUDA backend, or the test is skipped; and what its random data are drawn from.
class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Backend>> opened = make_cuda_backend({});
    if (!opened.ok()) {
      ASSERT_EQ(opened.error().code, ErrorCode::not_found) << opened.error().message;
      GTEST_SKIP() << "no GPU";
    }
    backend_ = std::move(*opened);
  }

  std::unique_ptr<Backend> backend_;
  std::uint64_t seed_ = number_from_environment("KOHO_OP_SEED", std::random_device{}());
};
class CudaExperts : public OnCuda {};
class CudaAttention : public OnCuda {};

/// An expert layer at a model's widths, as a rank holds it, and how many tokens it gets.
struct ExpertLayer {
  const char* name;
  std::int64_t hidden, ffn, first, count, total, choices;
  bool shared;
  std::int64_t tokens;
  std::int64_t chosen = 0;  // so many experts share the choices; 0: all
};

/// A matrix of quantised values of any size and sign, scaled so that what it makes of such
/// quantised values is about 1.
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

/// A token's row has the same bits whether it comes alone or with the others.
void expect_bits_of_large_batch(CapturedBackend& backend,
                                const ExpertLayer& layer,
                                std::uint64_t seed) {
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
                  .reserve(with_glm47_facts({.tokens_max = tokens,
                                             .sequences_max = tokens,
                                             .context_max = 1,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
  const RandomActivation x(
      random_values(random, DType::bf16, {tokens, layer.hidden}, Spread::normal));
  HostTensor ids(DType::i32, {tokens, layer.choices});
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t a = 0; a < layer.choices; ++a)
      ids.set(t * layer.choices + a,
              static_cast<double>((7 * a + t) % (layer.chosen > 0 ? layer.chosen : layer.total)));
  const HostTensor weights = random_scales(random, DType::f32, {tokens, layer.choices}, 0.125);
  const auto run = [&](const RandomActivation& rows, const HostTensor& row_ids,
                       const HostTensor& row_weights) {
    const DeviceActivation x_array(backend, rows, placed->needs, 0);
    const DeviceArray id_array(backend, row_ids);
    const DeviceArray weight_array(backend, row_weights);
    const DeviceArray out(backend, DType::bf16, {row_ids.shape[0], layer.hidden});
    EXPECT_EQ(fault_of("experts", backend.experts(out.view(), x_array.view(),
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

constexpr ExpertLayer kExpertLayers[] = {
    {"GLM-4.5-Air", 4096, 1408, 0, 10, 10, 8, true, 6},
    {"GLM-4.7 on four ranks", 5120, 1536, 3, 4, 12, 8, true, 6},
    {"GLM-4.7, at most one here", 5120, 1536, 12, 2, 40, 8, false, 6},
    {"GLM-4.7 sliced in four", 5120, 384, 0, 16, 16, 8, true, 6},
    {"GLM-4.7 sliced in eight", 5120, 192, 0, 12, 12, 8, false, 6},
    {"sliced in eight, entries of up to 32 tokens", 5120, 192, 0, 12, 12, 8, true, 41},
    {"sliced in four, the same", 5120, 384, 2, 9, 16, 8, false, 50},
    {"one of eight ranks, the same", 5120, 1536, 3, 2, 12, 8, false, 45},
    {"one of eight ranks, entries of up to 8 tokens", 5120, 1536, 3, 5, 40, 8, false, 16},
    {"the same, of 64 tokens", 5120, 1536, 3, 5, 160, 8, false, 64},
    {"the same, several entries an expert", 5120, 1536, 3, 5, 160, 8, false, 64, 12},
    {"odd widths, entries of up to 32 tokens", 5204, 200, 1, 5, 10, 6, true, 39},
    {"one of eight ranks, two tiles an item", 5120, 1536, 3, 5, 40, 8, false, 70},
    {"the same, odd numbers of tiles", 4160, 1440, 0, 4, 16, 8, true, 30},
    {"a prompt of GLM-4.5-Air", 4096, 1408, 0, 10, 10, 8, true, 333},
    {"a prompt on one of four ranks", 5120, 1536, 3, 4, 12, 8, false, 400},
    {"a prompt, sliced in eight", 5120, 192, 0, 12, 12, 8, true, 2401},
    {"a prompt whose tokens have few experts here", 5120, 192, 3, 4, 12, 8, true, 1030}};

/// One token's kernels cut their work by the number of experts and by the widths, and so do those
/// of a prompt, whose clusters have many items one after the other: what the small cases do not
/// reach.
TEST_F(CudaExperts, OneTokenHasTheBitsOfALargeBatchAtModelWidths) {
  CapturedBackend backend(std::move(backend_));
  for (const ExpertLayer& layer : kExpertLayers) expect_bits_of_large_batch(backend, layer, seed_);
}
TEST_F(CudaExperts, PortableKernelsAreBatchInvariantToo) {
  constexpr std::int64_t kTokensMax = 100;  // prompts take it the longest, by the same kernel
  Result<std::unique_ptr<Backend>> portable = make_cuda_backend({.portable_only = true});
  ASSERT_TRUE(portable.ok()) << portable.error().message;
  CapturedBackend backend(std::move(*portable));
  for (const ExpertLayer& layer : kExpertLayers)
    if (layer.tokens <= kTokensMax) expect_bits_of_large_batch(backend, layer, seed_);
}

/// A prompt with many tiles a multiprocessor, and rows that belong to nobody: the same bits each
/// time, whichever CTA draws a tile, and the quantised values of what was written. What attention
/// computes is the cases' affair.
TEST_F(CudaAttention, LongPromptsAreReproducible) {
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kTokens = 3000;
  constexpr std::int64_t kPadding = 3;
  constexpr std::int64_t kContext = 3200;
  constexpr std::int64_t kPages = kContext / kPageTokens;
  Backend& backend = *backend_;
  constexpr std::int64_t kRows = kTokens + kPadding;
  ASSERT_TRUE(backend
                  .reserve(with_glm47_facts({.tokens_max = kRows,
                                             .sequences_max = 2,
                                             .context_max = kContext,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
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
      SCOPED_TRACE("group " + std::to_string(group) + ", KOHO_OP_SEED=" + std::to_string(seed_));
      Random random(seed_);
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
        EXPECT_EQ(out.check_quantized("out") + out.guard_fault("out"), "");
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

/// Decoded rows of contexts around the places where they are cut, few to very many at a time, so
/// that items of work are units, groups and spans (src/cuda/attention/attention_split_kv.cuh): each
/// row alone, of which all items are units, has the same bits. What attention computes is the
/// cases' affair.
TEST_F(CudaAttention, ADecodedRowIsBatchInvariantUnderEverySplitKv) {
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kPages = 90;  // many sequences have the same ones
  constexpr std::int64_t kEdges[] = {128,  512,  1024, 2048,  2560, 4096,
                                     4608, 6144, 8192, 12288, 20480};
  constexpr std::int64_t kContextMax = 20500;
  constexpr std::int64_t kCrowds[] = {2, 7, 40, 70, 140, 210, 300};
  constexpr std::int64_t kSequencesMax = 300;
  Backend& backend = *backend_;
  ASSERT_TRUE(backend
                  .reserve(with_glm47_facts({.tokens_max = kSequencesMax,
                                             .sequences_max = kSequencesMax,
                                             .context_max = kContextMax,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
  SCOPED_TRACE("KOHO_OP_SEED=" + std::to_string(seed_));
  Random random(seed_);
  constexpr std::int64_t kColumns = ceil_div(kContextMax, kPageTokens);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3})
    for (const std::int64_t kv_heads : {1, 2}) {
      const HeadShape heads{12 * kv_heads, kv_heads, kWidth, 64};
      const std::int64_t row_width = heads.query_heads * kWidth;
      const Shape cache{kPages, kv_heads, kPageTokens, kWidth};
      const Shape cache_scales{kPages, kv_heads, kPageTokens};
      const DeviceArray k(backend, random_values(random, dtype, cache, Spread::normal));
      const DeviceArray v(backend, random_values(random, dtype, cache, Spread::normal));
      const DeviceArray k_scales(backend, random_scales(random, DType::f32, cache_scales, 0.1));
      const DeviceArray v_scales(backend, random_scales(random, DType::f32, cache_scales, 0.1));
      KvLayer kv{k.view(), v.view(), {}, {}};
      if (dtype == DType::f8_e4m3) {
        kv.k_scales = k_scales.view();
        kv.v_scales = v_scales.view();
      }
      const auto rows_of = [&](const HostTensor& q, const std::vector<std::int64_t>& contexts,
                               const HostTensor& tables) {
        const auto sequences = static_cast<std::int64_t>(contexts.size());
        HostTensor starts(DType::i32, {sequences + 1});
        HostTensor positions(DType::i32, {sequences});
        HostTensor lengths(DType::i32, {sequences});
        Batch batch;
        for (std::int64_t s = 0; s < sequences; ++s) {
          const std::int64_t context = contexts[static_cast<std::size_t>(s)];
          starts.set(s + 1, static_cast<double>(s + 1));
          positions.set(s, static_cast<double>(std::max<std::int64_t>(context - 1, 0)));
          lengths.set(s, static_cast<double>(context));
          batch.context_max = std::max(batch.context_max, context);
        }
        const DeviceArray starts_array(backend, starts);
        const DeviceArray positions_array(backend, positions);
        const DeviceArray lengths_array(backend, lengths);
        const DeviceArray tables_array(backend, tables);
        const DeviceArray q_array(backend, q);
        batch.tokens = batch.sequences = batch.decodes = sequences;
        batch.query_max = 1;
        batch.positions = positions_array.view();
        batch.query_starts = starts_array.view();
        batch.context_lengths = lengths_array.view();
        batch.page_tables = tables_array.view();
        const DeviceActivation out(backend, sequences, row_width,
                                   {.values = true, .per_token = true});
        EXPECT_EQ(
            fault_of("attention", backend.attention(out.view(), q_array.view(), kv, batch, heads)),
            "");
        EXPECT_EQ(out.check_quantized("out") + out.guard_fault("out"), "");
        return out.values.get();
      };
      for (const std::int64_t sequences : kCrowds) {
        SCOPED_TRACE(std::to_string(sequences) + " sequences, " + std::to_string(kv_heads) +
                     " kv heads");
        std::vector<std::int64_t> contexts;
        HostTensor tables(DType::i32, {sequences, kColumns});
        for (std::int64_t s = 0; s < sequences; ++s) {
          const std::int64_t edge = kEdges[random.integer(0, std::size(kEdges) - 1)];
          contexts.push_back(random.chance(0.05)  ? 0
                             : random.chance(0.7) ? edge + random.integer(-1, 1)
                                                  : random.integer(1, kContextMax));
          const std::int64_t pages = ceil_div(contexts.back(), kPageTokens);
          for (std::int64_t i = 0; i < kColumns; ++i)  // a page that does not exist beyond
            tables.set(s * kColumns + i,
                       i < pages ? static_cast<double>(random.integer(0, kPages - 1)) : 1e9);
        }
        const HostTensor q = random_values(random, DType::bf16,
                                           {sequences, heads.query_heads, kWidth}, Spread::normal);
        const HostTensor all = rows_of(q, contexts, tables);
        for (int i = 0; i < 6; ++i) {
          const std::int64_t s = random.integer(0, sequences - 1);
          const std::int64_t context = contexts[static_cast<std::size_t>(s)];
          HostTensor q_row(DType::bf16, {1, heads.query_heads, kWidth});
          for (std::int64_t j = 0; j < row_width; ++j) q_row.set(j, q.at(s * row_width + j));
          EXPECT_EQ(compare_bits("row " + std::to_string(s) + " of " + std::to_string(context),
                                 rows_of(q_row, {context}, row_of(tables, s)), row_of(all, s)),
                    "");
        }
      }
    }
}

/// The kernel that asks for pages before the one that stores each row's newest token is done sees
/// that token all the same: many steps one after another, where what the step before stored lies
/// there still, have the bits of each step with a wait between the two.
TEST_F(CudaAttention, ADecodedRowSeesTheTokenStoredByThePreviousKernel) {
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kSteps = 10;
  constexpr std::int64_t kColumns = 9;  // pages of a sequence
  constexpr std::int64_t kEdges[] = {1, 64, 65, 127, 128, 129, 200, 512, 513, 576};
  constexpr std::int64_t kSequencesMax = 40;
  Backend& backend = *backend_;
  ASSERT_TRUE(backend
                  .reserve(with_glm47_facts({.tokens_max = kSequencesMax,
                                             .sequences_max = kSequencesMax,
                                             .context_max = kColumns * kPageTokens,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
  SCOPED_TRACE("KOHO_OP_SEED=" + std::to_string(seed_));
  Random random(seed_);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3})
    for (const std::int64_t sequences : {std::int64_t{1}, std::int64_t{3}, kSequencesMax}) {
      SCOPED_TRACE(std::to_string(sequences) + " sequences");
      const HeadShape heads{24, 2, kWidth, 64};
      const std::int64_t pages = sequences * kColumns;
      const Shape cache{pages, heads.kv_heads, kPageTokens, kWidth};
      const DeviceArray k(backend, random_values(random, dtype, cache, Spread::normal));
      const DeviceArray v(backend, random_values(random, dtype, cache, Spread::normal));
      const Shape scales{pages, heads.kv_heads, kPageTokens};
      const DeviceArray k_scales(backend, random_scales(random, DType::f32, scales, 0.01));
      const DeviceArray v_scales(backend, random_scales(random, DType::f32, scales, 0.01));
      KvLayer kv{k.view(), v.view(), {}, {}};
      if (dtype == DType::f8_e4m3) {
        kv.k_scales = k_scales.view();
        kv.v_scales = v_scales.view();
      }
      HostTensor starts(DType::i32, {sequences + 1});
      HostTensor positions(DType::i32, {sequences});
      HostTensor lengths(DType::i32, {sequences});
      HostTensor slots(DType::i64, {sequences});
      HostTensor tables(DType::i32, {sequences, kColumns});
      for (std::int64_t s = 0; s < sequences; ++s) {
        const std::int64_t context = kEdges[random.integer(0, std::size(kEdges) - 1)];
        starts.set(s + 1, static_cast<double>(s + 1));
        positions.set(s, static_cast<double>(context - 1));
        lengths.set(s, static_cast<double>(context));
        slots.set(s, static_cast<double>(s * kColumns * kPageTokens + context - 1));
        for (std::int64_t i = 0; i < kColumns; ++i)
          tables.set(s * kColumns + i, static_cast<double>(s * kColumns + i));
      }
      const DeviceArray starts_array(backend, starts);
      const DeviceArray positions_array(backend, positions);
      const DeviceArray lengths_array(backend, lengths);
      const DeviceArray slots_array(backend, slots);
      const DeviceArray tables_array(backend, tables);
      const DeviceArray rope_table(
          backend, random_values(random, DType::f32, {kColumns * kPageTokens, 2, heads.rotary / 2},
                                 Spread::normal));
      QkNormRope weights;
      weights.heads = heads;
      weights.rope_table = rope_table.view();
      Batch batch;
      batch.tokens = batch.sequences = batch.decodes = sequences;
      batch.query_max = 1;
      batch.context_max = kColumns * kPageTokens;
      batch.positions = positions_array.view();
      batch.query_starts = starts_array.view();
      batch.context_lengths = lengths_array.view();
      batch.page_tables = tables_array.view();
      const DeviceArray q(backend, DType::bf16, {sequences, heads.query_heads, kWidth});
      std::vector<DeviceArray> qkv;
      std::vector<std::unique_ptr<DeviceActivation>> outs;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        qkv.emplace_back(
            backend, random_values(random, DType::bf16,
                                   {sequences, (heads.query_heads + 2 * heads.kv_heads) * kWidth},
                                   Spread::normal));
        outs.push_back(
            std::make_unique<DeviceActivation>(backend, sequences, heads.query_heads * kWidth,
                                               ActivationNeeds{.values = true, .per_token = true}));
      }
      const auto run = [&](std::int64_t step, bool waits) -> Status {
        Queries queries;
        queries.values = q.view();
        Activation in;
        in.values = qkv[static_cast<std::size_t>(step)].view();
        KOHO_TRY(backend.qk_norm_rope_store_kv(queries, kv, in, positions_array.view(),
                                               slots_array.view(), weights));
        if (waits) KOHO_TRY(backend.synchronize());
        return backend.attention(outs[static_cast<std::size_t>(step)]->view(), q.view(), kv, batch,
                                 heads);
      };
      std::vector<HostTensor> alone;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        EXPECT_EQ(fault_of("alone", run(step, true)), "");
        alone.push_back(outs[static_cast<std::size_t>(step)]->values.get());
      }
      Result<std::unique_ptr<CapturedGraph>> graph = backend.capture([&]() -> Status {
        for (std::int64_t step = 0; step < kSteps; ++step) KOHO_TRY(run(step, false));
        return {};
      });
      ASSERT_TRUE(graph.ok()) << graph.error().message;
      for (int time = 0; time < 3; ++time) {
        EXPECT_EQ(fault_of("replay", (*graph)->replay()), "");
        for (std::int64_t step = 0; step < kSteps; ++step)
          EXPECT_EQ(compare_bits("step " + std::to_string(step),
                                 outs[static_cast<std::size_t>(step)]->values.get(),
                                 alone[static_cast<std::size_t>(step)]),
                    "");
      }
    }
}

}  // namespace
}  // namespace koho::testing
