// SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "model/kv_cache.h"
#include "model/memory_plan.h"

namespace koho {
namespace {

const std::filesystem::path kModel = KOHO_SOURCE_DIR "/models/tiny";

struct Answer {
  std::vector<Token> ids;
  std::string text;
  Summary summary;
};

Answer read(OutputStream& stream) {
  Answer answer;
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = stream.wait(event, 1'000'000);
    if (read == OutputStream::Read::done) break;
    if (read == OutputStream::Read::nothing) continue;
    if (event.token >= 0) answer.ids.push_back(event.token);
    answer.text += event.text;
  }
  answer.summary = stream.summary();
  return answer;
}

Request greedy(const Runtime& runtime, const std::string& text) {
  Request request = runtime.default_request();
  request.prompt = *runtime.text()->tokenizer.encode(text);
  request.sampling.temperature = 0.0;
  request.max_tokens = 24;
  return request;
}

TEST(Runtime, AnswersTheSameInABatchAsAlone) {
  const std::array<std::string, 4> prompts{"Once upon a time", "The capital of France is",
                                           "One day a little fox", "12 + 13 ="};
  std::vector<Answer> alone;
  {
    auto runtime = Runtime::start(kModel, {.sequences_max = 1});
    ASSERT_TRUE(runtime.ok()) << runtime.error().message;
    for (const std::string& prompt : prompts)
      alone.push_back(read(**(*runtime)->engine().submit(greedy(**runtime, prompt))));
  }
  auto runtime = Runtime::start(kModel, {.sequences_max = 4, .prefill_chunk = 3});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (const std::string& prompt : prompts)
    streams.push_back(*(*runtime)->engine().submit(greedy(**runtime, prompt)));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Answer answer = read(*streams[i]);
    EXPECT_EQ(answer.ids, alone[i].ids) << prompts[i];
    EXPECT_EQ(answer.text, alone[i].text);
    EXPECT_FALSE(answer.ids.empty());
  }
}

TEST(Runtime, FindsTheSharedPrefixOfASecondPrompt) {
  auto runtime = Runtime::start(kModel, {.sequences_max = 2});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  Request request = greedy(**runtime, "x");
  request.prompt.assign(200, 100);
  Request again = request;
  again.prompt.back() = 101;
  const Answer first = read(**(*runtime)->engine().submit(std::move(request)));
  const Answer second = read(**(*runtime)->engine().submit(std::move(again)));
  EXPECT_EQ(first.summary.usage.cached_tokens, 0);
  EXPECT_EQ(second.summary.usage.cached_tokens, 192);
}

TEST(Runtime, BiasesOfOthersKeepNobodyOutOfABatch) {
  constexpr std::int32_t kChoices = 20;
  auto runtime = Runtime::start(kModel, {.sequences_max = kChoices, .context_max = 128});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  Engine& engine = (*runtime)->engine();
  // The most that a request may have, and its stop tokens beside them until min_tokens.
  Request request = greedy(**runtime, "Once");
  request.choices = kChoices;
  request.min_tokens = request.max_tokens;
  request.stop_tokens.clear();
  for (Token token = 0; token < kStopTokensMax; ++token) request.stop_tokens.push_back(token);
  for (Token token = 0; token < kLogitBiasMax; ++token)
    request.sampling.logit_bias.emplace_back(token, -1.0F);
  const auto stream = engine.submit(std::move(request));
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  const Answer answer = read(**stream);
  EXPECT_EQ(answer.ids.size(), 24U * kChoices);
  engine.settle();
  EXPECT_EQ(engine.statistics().decode_rows_max, kChoices);
}

TEST(Runtime, SizesFollowTheOptions) {
  auto runtime = Runtime::start(kModel, {.sequences_max = 3, .context_max = 1000});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  const RuntimeSizes& sizes = (*runtime)->sizes();
  EXPECT_EQ(sizes.context_max, 1000);
  EXPECT_EQ(sizes.kv_pages, 3 * 16);
  const ModelConfig& config = (*runtime)->model().config;
  EXPECT_EQ(sizes.kv_bytes_per_token, kv_bytes_per_token(config, DType::bf16));
  EXPECT_EQ(sizes.kv_bytes, 3 * 16 * 64 * kv_bytes_per_token(config, DType::bf16));
}

TEST(Runtime, UnderDataParallelAttentionEachRankHoldsItsShareOfThePages) {
  auto runtime = Runtime::start(kModel, {.ranks = 2,
                                         .attention = AttentionLayout::data_parallel,
                                         .sequences_max = 3,
                                         .context_max = 1000});
  ASSERT_TRUE(runtime.ok()) << runtime.error().message;
  const RuntimeSizes& sizes = (*runtime)->sizes();
  const ModelConfig& config = (*runtime)->model().config;
  EXPECT_EQ(sizes.kv_pages, 3 * 16);
  EXPECT_EQ(sizes.kv_bytes_per_token, kv_bytes_per_token(config, DType::bf16));
  EXPECT_EQ(sizes.kv_bytes, 3 * 16 / 2 * 64 * kv_bytes_per_token(config, DType::bf16));
  const Answer answer = read(**(*runtime)->engine().submit(greedy(**runtime, "Once upon a time")));
  EXPECT_EQ(answer.ids.size(), 24U);
}

TEST(Runtime, TheContextIsNoLongerThanWhatTheFewestPagesOfASequenceHold) {
  const auto one = Runtime::start(kModel, {.context_max = 512, .kv_pages = 1});
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ((*one)->sizes().context_max, 64);
  // Under data-parallel attention a sequence has one rank's pages.
  const auto two = Runtime::start(
      kModel,
      {.ranks = 2, .attention = AttentionLayout::data_parallel, .context_max = 100, .kv_pages = 2});
  ASSERT_TRUE(two.ok()) << two.error().message;
  EXPECT_EQ((*two)->sizes().context_max, 64);
}

TEST(Runtime, ATokensKeysAndValuesTakeWhatTheFormulaSays) {
  std::vector<std::string> warnings;
  const Result<std::string> text =
      read_file(KOHO_SOURCE_DIR "/tests/data/configs/glm-4.7.json", 1U << 20U);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Result<ModelConfig> config = parse_model_config(*text, warnings);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const std::int64_t formula =
      2 * config->num_hidden_layers * config->num_key_value_heads * config->head_dim * 2;
  EXPECT_EQ(formula, 376'832);
  EXPECT_EQ(kv_bytes_per_token(*config, DType::bf16), formula);

  // One page of GLM-4.7, as a rank allocates it, added up tensor by tensor.
  auto backend = make_backend({.kind = DeviceKind::cpu, .threads = 1}, 0, 1);
  ASSERT_TRUE(backend.ok());
  auto cache = KvCache::allocate(**backend, {.layers = config->num_hidden_layers,
                                             .pages = 1,
                                             .kv_heads = config->num_key_value_heads,
                                             .width = config->head_dim,
                                             .dtype = DType::bf16});
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < config->num_hidden_layers; ++layer)
    bytes += cache->layer(layer).k.bytes() + cache->layer(layer).v.bytes();
  EXPECT_EQ(bytes, kPageTokens * formula);
}

TEST(Runtime, RefusesWhatItCannotDo) {
  EXPECT_EQ(Runtime::start(kModel, {.ranks = 3}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(Runtime::start(kModel, {.ranks = 16}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(Runtime::start(kModel, {.sequences_max = 0}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(Runtime::start("nowhere", {}).error().code, ErrorCode::not_found);
}

TEST(DefaultSampling, IsWhatTheModelAdvises) {
  GenerationConfig generation;
  EXPECT_EQ(default_sampling(generation).temperature, 1.0);
  generation.sampling.temperature = 0.6;
  generation.sampling.top_p = 0.95;
  generation.sampling.top_k = 40;
  EXPECT_EQ(default_sampling(generation).temperature, 0.6);
  EXPECT_EQ(default_sampling(generation).top_p, 0.95);
  EXPECT_EQ(default_sampling(generation).top_k, 40);
  generation.do_sample = false;
  EXPECT_EQ(default_sampling(generation).temperature, 0.0);
}

}  // namespace
}  // namespace koho
