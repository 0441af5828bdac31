// SPDX-License-Identifier: Apache-2.0
#include "runtime/sizes.h"

#include <initializer_list>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "model/memory_plan.h"

namespace koho {
namespace {

const std::filesystem::path kModel = KOHO_SOURCE_DIR "/models/tiny";

ModelConfig glm_4_7() {
  std::vector<std::string> warnings;
  const Result<std::string> text =
      read_file(KOHO_SOURCE_DIR "/tests/data/configs/glm-4.7.json", 1U << 20U);
  return *parse_model_config(*text, warnings);
}

constexpr std::int64_t kGib = std::int64_t{1} << 30;

TEST(Sizes, TheLongestRequestDoesNotDependOnHowManyRun) {
  const ModelConfig config = glm_4_7();
  // 202,752 tokens take 71 GiB, which is what there is in any case.
  for (const std::int32_t sequences : {1, 4, 8, 64, 256}) {
    const RuntimeSizes sizes =
        decide_sizes(config, {.sequences_max = sequences}, {.bytes = 100 * kGib});
    EXPECT_EQ(sizes.context_max, config.max_position_embeddings) << sequences;
    EXPECT_EQ(sizes.context_bound, ContextBound::model);
    EXPECT_GE(std::int64_t{sizes.kv_pages} * kPageTokens, sizes.context_max);
    EXPECT_LE(sizes.kv_bytes, 100 * kGib);
  }
  // Where memory holds less, it is as long as all of the cache, again for any number.
  for (const std::int32_t sequences : {8, 64, 256}) {
    const RuntimeSizes sizes =
        decide_sizes(config, {.sequences_max = sequences}, {.bytes = 20 * kGib});
    EXPECT_EQ(sizes.context_max, 20 * kGib / (64 * 376'832) * 64) << sequences;
    EXPECT_EQ(sizes.context_bound, ContextBound::cache);
  }
}

struct RankCase {
  const char* config;
  std::int64_t gpu_gb;  // 10^9 bytes
  std::size_t gpus;
  std::int64_t ranks;
  RuntimeOptions options{};
};

TEST(Sizes, RanksAreTheFewestGpusThatHoldTheModel) {
  const std::vector<RankCase> cases{
      {"glm-4.7", 141, 8, 4},
      {"glm-4.7", 180, 8, 4},
      {"glm-4.7", 80, 8, 8},
      {"glm-4.7", 270, 8, 2},
      {"glm-4.7", 80, 4, 4},   // none holds it: as many as can be, whose error tells
      {"glm-4.7", 141, 6, 4},  // of 1, 2, 4 and 8
      {"glm-4.7", 141, 1, 1},
      {"glm-4.5-air", 141, 8, 1},
      {"glm-4.5-air", 180, 8, 1},
      {"glm-4.5-air", 80, 8, 2},
      {"glm-4.5-air", 80, 1, 1},
      // A context, or a cache, that one GPU has no room for.
      {"glm-4.5-air", 141, 8, 1, {.context_max = 100'000}},
      {"glm-4.5-air", 180, 8, 1, {.kv_bytes = 20 * kGib}},
      {"glm-4.5-air", 141, 8, 2, {.kv_bytes = 60 * kGib}},
      {"glm-4.5-air", 141, 8, 2, {.kv_pages = 6000}},
  };
  std::map<std::string, LoadedModel> models;
  for (const RankCase& one : cases) {
    if (!models.contains(one.config)) {
      Result<LoadedModel> made = load_synthetic_model(
          std::string(KOHO_SOURCE_DIR "/tests/data/configs/") + one.config + ".json", 0, "",
          DeviceKind::cuda);
      ASSERT_TRUE(made.ok()) << made.error().message;
      models.emplace(one.config, *std::move(made));
    }
    const LoadedModel& model = models.at(one.config);
    RuntimeOptions options = one.options;
    options.device.kind = DeviceKind::cuda;
    const std::vector<std::int64_t> gpus(one.gpus, one.gpu_gb * 1'000'000'000);
    EXPECT_EQ(fewest_ranks(model.config, model.sources, options, gpus), one.ranks)
        << one.config << " on " << one.gpus << " of " << one.gpu_gb << " GB";
  }
}

TEST(Sizes, MoreSequencesGetMorePagesAsFarAsMemoryGoes) {
  const ModelConfig config = glm_4_7();
  const auto pages = [&](std::int32_t sequences, std::int64_t gib) {
    return decide_sizes(config, {.device = {.kind = DeviceKind::cuda}, .sequences_max = sequences},
                        {.bytes = gib * kGib})
        .kv_pages;
  };
  EXPECT_EQ(pages(1, 1000), 202'752 / 64);  // one full request
  EXPECT_EQ(pages(64, 1000), 64 * 8192 / 64);
  EXPECT_EQ(pages(256, 1000), 256 * 8192 / 64);
  EXPECT_EQ(pages(256, 100), 100 * kGib / (64 * 376'832));
}

TEST(Sizes, UnaskedACpusCacheHoldsOneLongestRequest) {
  const ModelConfig config = glm_4_7();
  const auto pages = [&](std::int32_t context, std::int64_t gib) {
    return decide_sizes(config, {.sequences_max = 64, .context_max = context},
                        {.bytes = gib * kGib})
        .kv_pages;
  };
  EXPECT_EQ(pages(0, 1000), 202'752 / 64);
  EXPECT_EQ(pages(0, 10), 10 * kGib / (64 * 376'832)) << "within memory";
  EXPECT_EQ(pages(2048, 1000), 64 * 2048 / 64) << "asked for, every sequence has it";
}

TEST(Sizes, AContextThatIsAskedForIsGiven) {
  const ModelConfig config = glm_4_7();
  const RuntimeSizes sizes =
      decide_sizes(config, {.sequences_max = 4, .context_max = 100'000}, {.bytes = kGib});
  EXPECT_EQ(sizes.context_max, 100'000);
  EXPECT_EQ(sizes.context_bound, ContextBound::asked);
  EXPECT_EQ(sizes.kv_pages, 1563);
}

TEST(Sizes, BytesThatAreAskedForAreTakenWhole) {
  const ModelConfig config = glm_4_7();
  for (const std::int64_t gib : {10, 400}) {
    const RuntimeOptions options{.sequences_max = 2, .kv_bytes = gib * kGib};
    const Result<CacheMemory> memory = cache_memory(config, {}, options, {});
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    const RuntimeSizes sizes = decide_sizes(config, options, *memory);
    EXPECT_EQ(sizes.kv_pages, gib * kGib / (64 * 376'832));
    EXPECT_LE(sizes.kv_bytes, gib * kGib);
  }
  // On each of four ranks, which hold a fourth of every page.
  const RuntimeOptions four{.ranks = 4, .kv_bytes = 10 * kGib};
  EXPECT_EQ(decide_sizes(config, four, *cache_memory(config, {}, four, {})).kv_pages,
            10 * kGib / (16 * 376'832));
  EXPECT_EQ(cache_memory(config, {}, {.kv_bytes = 1000}, {}).error().code,
            ErrorCode::resource_exhausted);
}

TEST(Sizes, ARunningRuntimeHasThePagesThatItsBytesHold) {
  const std::int64_t page = 64 * 5 * 8 * 2 * 128 * 2;  // tokens, layers, heads, K and V, bf16
  const auto runtime = Runtime::start(kModel, {.sequences_max = 2, .kv_bytes = 100 * page + 17});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  EXPECT_EQ((*runtime)->sizes().kv_pages, 100);
  EXPECT_EQ((*runtime)->sizes().kv_bytes, 100 * page);
  EXPECT_EQ((*runtime)->sizes().context_max, 6400);
  EXPECT_EQ((*runtime)->engine().statistics().pages_total, 100);
}

TEST(Sizes, AShareOfMemoryIsOfWeightsAndCacheTogether) {
  const Result<LoadedModel> tiny = load_model(kModel);
  ASSERT_TRUE(tiny.ok()) << tiny.error().message;
  const auto memory = [&](double share) {
    const RuntimeOptions options{.memory_share = share};
    return cache_memory(tiny->config, tiny->sources, options, *open_devices(options));
  };
  const Result<CacheMemory> half = memory(0.5);
  const Result<CacheMemory> whole = memory(1.0);
  ASSERT_TRUE(half.ok() && whole.ok());
  const std::int64_t total = *device_memory_bytes({});
  EXPECT_NEAR(static_cast<double>(whole->bytes - half->bytes), static_cast<double>(total) / 2, 2);
  const std::int64_t weights = total - whole->bytes;
  EXPECT_GT(weights, 1'000'000);
  std::int64_t stored = 0;  // the MTP layer included
  for (const CheckpointTensor& tensor : tiny->checkpoint->tensors())
    stored += static_cast<std::int64_t>(tensor.bytes.size());
  EXPECT_LT(weights, stored);
  EXPECT_TRUE(half->whole);
  // What the weights alone take leaves no page.
  const Result<CacheMemory> none =
      memory(static_cast<double>(weights) / static_cast<double>(total));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::resource_exhausted);
}

TEST(Sizes, RanksOfOneGpuShareItsMemory) {
  const std::vector<RankMemory> devices(4, {.total = 800, .free = 600});
  RuntimeOptions options{.ranks = 4};
  options.device.kind = DeviceKind::cuda;
  EXPECT_EQ(memory_of_ranks(options, devices)[3].free, 600);
  options.device.devices = {0};
  EXPECT_EQ(memory_of_ranks(options, devices)[3].free, 150);
  options.device.devices = {0, 1, 1, 1};
  EXPECT_EQ(memory_of_ranks(options, devices)[0].total, 800);
  EXPECT_EQ(memory_of_ranks(options, devices)[1].total, 266);
}

TEST(Sizes, TheCachesSizeIsSaidOnce) {
  EXPECT_EQ(Runtime::start(kModel, {.kv_pages = 9, .kv_bytes = 1 << 20}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(Runtime::start(kModel, {.kv_bytes = 1 << 20, .memory_share = 0.1}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(Runtime::start(kModel, {.memory_share = 1.5}).error().code,
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace koho
