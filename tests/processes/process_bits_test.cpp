// SPDX-License-Identifier: Apache-2.0
// Ranks as processes give the bits of ranks as threads: tokens and logprobs of the trained model,
// for every way of cutting it over 2, 4 and 8 ranks.
#include <bit>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/runtime.h"
#include "tests/processes/worker_engine.h"

namespace koho::testing {
namespace {

struct Spread {
  const char* name;
  std::int64_t ranks;
  ExpertLayout experts;
  AttentionLayout attention;
};

constexpr ExpertLayout kWhole = ExpertLayout::expert_parallel;
constexpr ExpertLayout kSliced = ExpertLayout::tensor_parallel;
constexpr AttentionLayout kTp = AttentionLayout::tensor_parallel;
constexpr AttentionLayout kDp = AttentionLayout::data_parallel;

/// Prompts of several lengths; drawn with temperature, so that every bit of a logit counts.
std::vector<KnownAnswer> answers(const Spread& spread, ExecutorKind executor) {
  RuntimeOptions options;
  options.ranks = spread.ranks;
  options.experts = spread.experts;
  options.attention = spread.attention;
  options.executor = executor;
  options.worker = KOHO_BINARY;
  options.sequences_max = 8;
  options.context_max = 256;
  options.prefill_chunk = 64;
  options.device.threads = 2;
  auto runtime = Runtime::start(KOHO_SOURCE_DIR "/models/tiny", options);
  EXPECT_TRUE(runtime.ok()) << runtime.error().message;
  if (!runtime.ok()) return {};
  EXPECT_EQ((*runtime)->worker_processes().size(),
            executor == ExecutorKind::process ? static_cast<std::size_t>(spread.ranks) : 0U);
  std::mt19937 random(11);
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (int i = 0; i < 8; ++i) {
    Request request;
    request.prompt.resize(1 + random() % 100);
    for (Token& token : request.prompt) token = static_cast<Token>(random() % 1000);
    request.max_tokens = 12;
    request.sampling.temperature = 1.0;
    request.sampling.seed = i;
    request.sampling.logprobs = 0;
    streams.push_back(*(*runtime)->engine().submit(std::move(request)));
  }
  std::vector<KnownAnswer> all;
  for (const auto& stream : streams) all.push_back(read_answer(*stream));
  EXPECT_EQ((*runtime)->engine().statistics().device_failures, 0U);
  return all;
}

class ProcessBits : public ::testing::TestWithParam<Spread> {};

TEST_P(ProcessBits, AreThoseOfThreads) {
  const std::vector<KnownAnswer> threads = answers(GetParam(), ExecutorKind::thread);
  const std::vector<KnownAnswer> processes = answers(GetParam(), ExecutorKind::process);
  ASSERT_EQ(threads.size(), 8U);
  EXPECT_EQ(processes, threads);
}

INSTANTIATE_TEST_SUITE_P(Spreads,
                         ProcessBits,
                         ::testing::Values(Spread{"OneRank", 1, kWhole, kTp},
                                           Spread{"TwoEp", 2, kWhole, kTp},
                                           Spread{"FourEp", 4, kWhole, kTp},
                                           Spread{"EightEp", 8, kWhole, kTp},
                                           Spread{"TwoTp", 2, kSliced, kTp},
                                           Spread{"FourTp", 4, kSliced, kTp},
                                           Spread{"EightTp", 8, kSliced, kTp},
                                           Spread{"TwoDp", 2, kWhole, kDp},
                                           Spread{"FourDp", 4, kWhole, kDp},
                                           Spread{"EightDp", 8, kWhole, kDp},
                                           Spread{"FourDpSliced", 4, kSliced, kDp}),
                         [](const auto& spread) { return spread.param.name; });

}  // namespace
}  // namespace koho::testing
