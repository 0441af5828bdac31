// SPDX-License-Identifier: Apache-2.0
// Experts of the CUDA backend at a model's widths: batch invariance, which the cases of small
// shapes do not reach.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "cuda/cuda_backend.h"
#include "ops/captured_backend.h"
#include "ops/compare.h"
#include "ops/on_cuda.h"
#include "ops/reference.h"
#include "support/step_limits.h"

namespace koho::testing {
namespace {

class CudaExperts : public OnCuda {};

/// An expert layer at a model's widths, as a rank holds it, and how many tokens it gets.
struct ExpertLayer {
  const char* name;
  std::int64_t hidden, ffn, first, count, total, choices;
  bool shared;
  std::int64_t tokens;
  std::int64_t chosen = 0;      // so many experts share the choices; 0: all
  std::int64_t shared_ffn = 0;  // of a rank's slice of the shared expert; 0: ffn

  /// The expert of number `i` among those that share the choices, counted round and round.
  double expert(std::int64_t i) const {
    return static_cast<double>(i % (chosen > 0 ? chosen : total));
  }
};

/// An FP8 weight of any size and sign, scaled so that its product with such values is about 1.
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

/// The layer with random weights, which `matrices` keeps.
Result<Experts> place(Backend& backend,
                      const ExpertLayer& layer,
                      Random& random,
                      std::vector<WideLinear>& matrices) {
  ExpertsSource source{.first = layer.first, .total = layer.total, .experts = {}, .shared = {}};
  const std::int64_t experts = layer.count + (layer.shared ? 1 : 0);
  for (std::int64_t e = 0; e < experts; ++e) {
    const bool slice = e == layer.count && layer.shared_ffn > 0;
    const std::int64_t ffn = slice ? layer.shared_ffn : layer.ffn;
    matrices.emplace_back(random, ffn, layer.hidden);
    matrices.emplace_back(random, ffn, layer.hidden);
    matrices.emplace_back(random, layer.hidden, ffn);
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
    const MlpSource mlp{matrices[3 * e].source(), matrices[3 * e + 1].source(),
                        matrices[3 * e + 2].source()};
    if (source.experts.size() < static_cast<std::size_t>(layer.count))
      source.experts.push_back(mlp);
    else
      source.shared = mlp;
  }
  KOHO_TRY_ASSIGN(Experts placed, backend.place_experts(source));
  KOHO_TRY(backend.reserve(with_glm47_facts({.tokens_max = layer.tokens,
                                             .sequences_max = layer.tokens,
                                             .context_max = 1,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1})));
  return placed;
}

/// A token's row has the same bits whether it comes alone or with the others.
void expect_bits_of_large_batch(CapturedBackend& backend,
                                const ExpertLayer& layer,
                                std::uint64_t seed) {
  SCOPED_TRACE(std::string(layer.name) + ", KOHO_OP_SEED=" + std::to_string(seed));
  Random random(seed);
  std::vector<WideLinear> matrices;
  Result<Experts> placed = place(backend, layer, random, matrices);
  ASSERT_TRUE(placed.ok()) << placed.error().message;
  const std::int64_t tokens = layer.tokens;
  const SyntheticActivation x(
      random_values(random, DType::bf16, {tokens, layer.hidden}, Spread::normal));
  HostTensor ids(DType::i32, {tokens, layer.choices});
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t a = 0; a < layer.choices; ++a)
      ids.set(t * layer.choices + a, layer.expert(7 * a + t));
  const HostTensor weights = random_scales(random, DType::f32, {tokens, layer.choices}, 0.125);
  const auto run = [&](const SyntheticActivation& rows, const HostTensor& row_ids,
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

/// Calls for four sets of tokens in turn, one behind the other in a graph that is replayed: each
/// has the bits of its first call, whose predecessor had ended.
void expect_bits_back_to_back(Backend& backend,
                              const ExpertLayer& layer,
                              std::int64_t fewest_tokens,
                              std::uint64_t seed) {
  SCOPED_TRACE(std::string(layer.name) + ", KOHO_OP_SEED=" + std::to_string(seed));
  constexpr int kSets = 4;
  constexpr int kCalls = 100;
  constexpr int kReplays = 10;
  Random random(seed);
  std::vector<WideLinear> matrices;
  Result<Experts> placed = place(backend, layer, random, matrices);
  ASSERT_TRUE(placed.ok()) << placed.error().message;
  for (std::int64_t tokens = fewest_tokens; tokens <= layer.tokens; ++tokens) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens");
    const SyntheticActivation x(
        random_values(random, DType::bf16, {tokens, layer.hidden}, Spread::normal));
    const DeviceActivation x_array(backend, x, placed->needs, 0);
    const DeviceArray weights(backend,
                              random_scales(random, DType::f32, {tokens, layer.choices}, 0.125));
    std::vector<std::unique_ptr<DeviceArray>> ids;
    std::vector<std::unique_ptr<DeviceArray>> outs;
    for (int set = 0; set < kSets; ++set) {
      HostTensor chosen(DType::i32, {tokens, layer.choices});
      for (std::int64_t i = 0; i < chosen.elements(); ++i)
        chosen.set(i, layer.expert(5 * set + 7 * (i % layer.choices) + i / layer.choices));
      ids.push_back(std::make_unique<DeviceArray>(backend, chosen));
      outs.push_back(
          std::make_unique<DeviceArray>(backend, DType::bf16, Shape{tokens, layer.hidden}));
    }
    const auto call = [&](int set) {
      const auto i = static_cast<std::size_t>(set);
      return backend.experts(outs[i]->view(), x_array.view(), {ids[i]->view(), weights.view()},
                             *placed);
    };
    std::vector<HostTensor> first;
    for (int set = 0; set < kSets; ++set) {
      ASSERT_EQ(fault_of("experts", call(set)), "");
      ASSERT_EQ(fault_of("synchronize", backend.synchronize()), "");
      first.push_back(outs[static_cast<std::size_t>(set)]->get());
    }
    Result<std::unique_ptr<CapturedGraph>> graph = backend.capture([&]() -> Status {
      for (int i = 0; i < kCalls; ++i) KOHO_TRY(call(i % kSets));
      return {};
    });
    ASSERT_TRUE(graph.ok()) << graph.error().message;
    for (int i = 0; i < kReplays; ++i) ASSERT_EQ(fault_of("replay", (*graph)->replay()), "");
    ASSERT_EQ(fault_of("synchronize", backend.synchronize()), "");
    for (int set = 0; set < kSets; ++set)
      EXPECT_EQ(
          compare_bits("set " + std::to_string(set), outs[static_cast<std::size_t>(set)]->get(),
                       first[static_cast<std::size_t>(set)]),
          "");
  }
}

constexpr ExpertLayer kExpertLayers[] = {
    {"GLM-4.5-Air", 4096, 1408, 0, 10, 10, 8, true, 6},
    {"GLM-4.7 on four ranks", 5120, 1536, 3, 4, 12, 8, true, 6},
    {"GLM-4.7, at most one here", 5120, 1536, 12, 2, 40, 8, false, 6},
    {"GLM-4.7 sliced in four", 5120, 384, 0, 16, 16, 8, true, 6},
    {"GLM-4.7 sliced in eight", 5120, 192, 0, 12, 12, 8, false, 6},
    {"sliced in eight, entries of up to 32 tokens", 5120, 192, 0, 12, 12, 8, true, 41},
    {"sliced in four, the same", 5120, 384, 2, 9, 16, 8, false, 50},
    {"one of eight ranks, the same", 5120, 1536, 3, 2, 24, 8, false, 45},
    {"one of eight ranks, entries of up to 8 tokens", 5120, 1536, 3, 5, 40, 8, false, 16},
    {"the same, of 64 tokens", 5120, 1536, 3, 5, 160, 8, false, 64},
    {"the same, several entries an expert", 5120, 1536, 3, 5, 160, 8, false, 64, 12},
    {"odd widths, entries of up to 32 tokens", 5204, 200, 1, 5, 10, 6, true, 39},
    {"one of eight ranks, two tiles an item", 5120, 1536, 3, 5, 40, 8, false, 70},
    {"the same, odd numbers of tiles", 4160, 1440, 0, 4, 16, 8, true, 30},
    {"a slice of the shared expert, entries of up to 8 tokens", 5120, 1536, 3, 5, 40, 8, true, 16,
     0, 192},
    {"the same, of 64 tokens", 5120, 1536, 3, 5, 160, 8, true, 64, 0, 192},
    {"the same, several entries an expert", 5120, 1536, 3, 5, 160, 8, true, 64, 12, 384},
    {"the same, two tiles an item", 5120, 1536, 3, 5, 40, 8, true, 100, 0, 192},
    {"the same, odd numbers of tiles", 4160, 1440, 0, 4, 40, 8, true, 70, 0, 184},
    {"sliced in eight, more tiles than fit at once", 1280, 192, 0, 70, 70, 8, true, 67},
    {"a prompt of GLM-4.5-Air", 4096, 1408, 0, 10, 10, 8, true, 333},
    {"a shorter one, token blocks of 160", 4096, 1408, 0, 10, 10, 8, true, 165},
    {"a prompt on one of four ranks", 5120, 1536, 3, 4, 12, 8, false, 400},
    {"the same with a slice of the shared expert", 5120, 1536, 3, 4, 12, 8, true, 400, 0, 384},
    {"a prompt, sliced in eight", 5120, 192, 0, 12, 12, 8, true, 2401},
    {"a prompt whose tokens have few experts here", 5120, 192, 3, 4, 12, 8, true, 1030}};

/// One token's kernels cut their work by the number of experts and by the widths, and so do those
/// of a prompt, whose clusters compute many tiles one after the other: what the small cases do not
/// reach.
TEST_F(CudaExperts, OneTokenHasTheBitsOfALargeBatchAtModelWidths) {
  CapturedBackend backend(std::move(backend_));
  for (const ExpertLayer& layer : kExpertLayers) expect_bits_of_large_batch(backend, layer, seed_);
}
/// More experts than L2 holds, so that a ring's loads arrive in any order.
constexpr ExpertLayer kRepeatedLayers[] = {
    {"GLM-4.7 sliced in four", 5120, 384, 0, 24, 24, 8, true, 8},
    {"GLM-4.7 sliced in eight", 5120, 192, 0, 40, 40, 8, false, 8},
    {"one of four ranks", 5120, 1536, 3, 4, 12, 8, false, 2},
    {"the same with a slice of the shared expert", 5120, 1536, 3, 4, 12, 8, true, 2, 0, 384},
};
/// From 48 tokens on w2 overlaps w13.
constexpr ExpertLayer kRepeatedBatches[] = {
    {"sliced in eight", 1280, 192, 0, 70, 70, 8, true, 48},
    {"sliced in eight, two tiles an item", 1280, 192, 0, 90, 90, 8, true, 130},
    {"one of eight ranks, several entries an expert", 5120, 1536, 3, 5, 160, 8, false, 48, 12},
    {"the same with a slice of the shared expert", 5120, 1536, 3, 5, 160, 8, true, 48, 12, 192},
    {"the same, two tiles an item", 5120, 1536, 3, 20, 160, 8, true, 130, 0, 192},
};
TEST_F(CudaExperts, CallsBackToBackHaveTheBitsOfTheFirst) {
  for (const ExpertLayer& layer : kRepeatedLayers)
    expect_bits_back_to_back(*backend_, layer, 1, seed_);
  for (const ExpertLayer& layer : kRepeatedBatches)
    expect_bits_back_to_back(*backend_, layer, layer.tokens - 1, seed_);
}
TEST_F(CudaExperts, PortableKernelsAreBatchInvariantToo) {
  Result<std::unique_ptr<Backend>> portable = make_cuda_backend({.portable_only = true});
  ASSERT_TRUE(portable.ok()) << portable.error().message;
  CapturedBackend backend(std::move(*portable));
  for (const ExpertLayer& layer : kExpertLayers) expect_bits_of_large_batch(backend, layer, seed_);
}

}  // namespace
}  // namespace koho::testing
