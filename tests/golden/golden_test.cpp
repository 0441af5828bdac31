// SPDX-License-Identifier: Apache-2.0
// koho's logits and greedy tokens against the reference's, by the rules of docs/goldens.md, on
// every machine of this program (backends.h). The rules' factors are the project's acceptance
// criteria; the distances they bound are the reference's own rounding noise, committed with its
// outputs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "tests/golden/backends.h"
#include "tests/golden/distance.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/koho_model.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

constexpr double kOneLayerFactor = 0.9;    // of the noise, from the bf16 run, FP8 and one layer
constexpr double kForgottenFactor = 1.05;  // at least this without activation quantisation

/// One greedy golden: names are `prefix` + "greedy_ids" and so on.
struct GreedyGolden {
  std::vector<std::int32_t> ids;      // [G] the reference's bf16 run
  std::vector<float> best;            // [G, 2] its two best logits at each step
  std::vector<float> rounding_noise;  // [G] largest |bf16 run - f32 run| over the vocabulary

  static GreedyGolden read(const GoldenFile& file, const std::string& prefix) {
    return {file.integers(prefix + "greedy_ids"), file.floats(prefix + "best_logits"),
            file.floats(prefix + "rounding_noise")};
  }
};

/// Where `found` first leaves the reference.
struct Difference {
  std::size_t step = 0;
  float gap = 0.0F;    // of the reference's two best logits
  float noise = 0.0F;  // its rounding noise there
};

std::optional<Difference> first_difference(const GreedyGolden& golden,
                                           const std::vector<std::int32_t>& found) {
  for (std::size_t i = 0; i < golden.ids.size(); ++i)
    if (found[i] != golden.ids[i])
      return Difference{i, golden.best[2 * i] - golden.best[2 * i + 1], golden.rounding_noise[i]};
  return std::nullopt;
}

std::string describe(const std::optional<Difference>& difference, std::size_t tokens) {
  if (!difference) return fmt::format("{} tokens equal", tokens);
  return fmt::format("equal up to token {}, where the two best are {:.3f} apart, noise {:.3f}",
                     difference->step, difference->gap, difference->noise);
}

class Golden : public ::testing::TestWithParam<GoldenBackend> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);  // without a GPU

void check_random_checkpoint(const RandomCheckpointSpec& spec, const GoldenBackend& machine) {
  SCOPED_TRACE(spec.name);
  const TemporaryDirectory directory;
  write_random_checkpoint(directory.path(), spec);
  const Result<GoldenFile> golden = GoldenFile::open(spec.name + ".safetensors");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  const std::vector<std::int32_t> ids = golden->integers("ids");
  const GreedyGolden greedy = GreedyGolden::read(*golden, "");
  const auto context = static_cast<std::int64_t>(ids.size() + greedy.ids.size());

  Result<KohoModel> model = KohoModel::load(directory.path(), context, machine.open());
  ASSERT_TRUE(model.ok()) << model.error().message;
  const Result<std::vector<float>> logits = model->prefill(ids);
  ASSERT_TRUE(logits.ok()) << logits.error().message;
  const std::vector<float> exact = golden->floats("f32_run");
  const std::vector<float> rounded = golden->floats("bf16_run");
  ASSERT_EQ(logits->size(), exact.size());

  const auto width = static_cast<std::size_t>(model->vocabulary());
  const double noise = median_distance(rounded, exact, width);
  const double distance = median_distance(*logits, exact, width);
  const double to_rounded = median_distance(*logits, rounded, width) / noise;
  EXPECT_LE(distance, median_bound(noise));
  if (spec.one_layer_fp8()) {
    EXPECT_LE(to_rounded, kOneLayerFactor);
  }

  const Result<std::vector<std::int32_t>> chosen =
      model->greedy(ids, static_cast<std::int64_t>(greedy.ids.size()));
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  ASSERT_EQ(chosen->size(), greedy.ids.size());
  const std::optional<Difference> difference = first_difference(greedy, *chosen);
  // Under FP8 a rounding changes quantised values, and the noises of the two runs are independent
  // and of one size: the test reports where two near logits part them, and demands nothing.
  if (difference && spec.quantization == "none") {
    EXPECT_LT(difference->gap, difference->noise) << describe(difference, greedy.ids.size());
  }
  fmt::print("{:24} {:8} noise {:.4f}  koho {:.4f} = {:.2f}x  to the bf16 run {:.2f}x  greedy {}\n",
             spec.name, machine.name, noise, distance, distance / noise, to_rounded,
             describe(difference, greedy.ids.size()));
}

TEST_P(Golden, LogitsOfEveryRandomCheckpointAreAsNearAsTheReferencesOwnRounding) {
  const Result<std::string> text = read_file(golden_path("checkpoints.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto specs = parse_random_checkpoints(*text);
  ASSERT_TRUE(specs.ok()) << specs.error().message;
  for (const RandomCheckpointSpec& spec : *specs) check_random_checkpoint(spec, GetParam());
}

TEST_P(Golden, GreedyTokensOfTheTrainedModelAreTheReferences) {
  const std::filesystem::path directory =
      std::filesystem::path(KOHO_SOURCE_DIR) / "models" / "tiny";
  const Result<GoldenFile> golden = GoldenFile::open("trained.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  Result<KohoModel> model = KohoModel::load(directory, 1024, GetParam().open());
  ASSERT_TRUE(model.ok()) << model.error().message;
  // All prompts on the fastest path, some on the others: each takes seconds on the plain one.
  const bool is_fastest = GetParam().fastest;
  const int prompts_min = is_fastest ? 8 : 3;
  int prompts = 0;
  for (; is_fastest || prompts < prompts_min; ++prompts) {
    const std::string prefix = fmt::format("{:02}.", prompts);
    if (!golden->has(prefix + "ids")) break;
    SCOPED_TRACE(fmt::format("prompt {} of tests/golden/trained.json", prompts));
    const GreedyGolden greedy = GreedyGolden::read(*golden, prefix);
    ASSERT_GE(greedy.ids.size(), 128U);
    const Result<std::vector<std::int32_t>> chosen = model->greedy(
        golden->integers(prefix + "ids"), static_cast<std::int64_t>(greedy.ids.size()));
    ASSERT_TRUE(chosen.ok()) << chosen.error().message;
    ASSERT_EQ(chosen->size(), greedy.ids.size());
    const std::optional<Difference> difference = first_difference(greedy, *chosen);
    if (difference) {
      EXPECT_LT(difference->gap, difference->noise) << describe(difference, greedy.ids.size());
    }
    fmt::print("prompt {:2} {:8} {}\n", prompts, GetParam().name,
               describe(difference, greedy.ids.size()));
  }
  EXPECT_GE(prompts, prompts_min);
}

INSTANTIATE_TEST_SUITE_P(EveryMachine,
                         Golden,
                         ::testing::ValuesIn(golden_backends()),
                         [](const auto& machine) { return machine.param.name; });

TEST(GoldenFacts, AMissingActivationQuantizationWouldShow) {
  const Result<std::string> text = read_file(golden_path("checkpoints.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto specs = parse_random_checkpoints(*text);
  ASSERT_TRUE(specs.ok()) << specs.error().message;
  const auto facts = read_golden_facts();
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  int one_layer = 0;
  for (const RandomCheckpointSpec& spec : *specs) {
    if (!spec.one_layer_fp8()) continue;
    ++one_layer;
    EXPECT_GE(facts->at(spec.name).unquantized_to_bf16_run, kForgottenFactor) << spec.name;
  }
  EXPECT_GE(one_layer, 2);
}

}  // namespace
}  // namespace koho::testing
