// SPDX-License-Identifier: Apache-2.0
// The trained model on several ranks, through engine, scheduler and executor, all prompts at once:
// its greedy tokens are one rank's, up to a first difference where one rank's own two best logits
// are closer than the rounding noise there. Under tensor parallelism FP8 activations are quantised
// from a rank's own columns, so the FP8 values, and with them the choice between two near logits,
// depend on the number of ranks.
//
// On the CPU, or with KOHO_TEST_DEVICES=0 on GPU 0 and with KOHO_TEST_DEVICES=0,1,2,3 on those: one
// GPU for all ranks, or the first ones of the list. KOHO_TEST_COLLECTIVES=nccl takes NCCL,
// KOHO_TEST_EXECUTOR=process worker processes, which take turns where they share a GPU.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "runtime/runtime.h"
#include "tests/golden/golden_file.h"
#include "tests/support/environment.h"
#include "tests/support/test_devices.h"

namespace koho::testing {
namespace {

/// Tokens of each answer: a part of the goldens' 128, which KOHO_GREEDY_TOKENS=128 asks for.
std::size_t answer_tokens() {
  return number_from_environment("KOHO_GREEDY_TOKENS", 40, 1);
}

constexpr AttentionLayout kTensorParallel = AttentionLayout::tensor_parallel;
constexpr AttentionLayout kDataParallel = AttentionLayout::data_parallel;

/// One prompt of tests/golden/trained.json.
struct Golden {
  std::vector<Token> prompt;
  std::vector<Token> greedy;  // the reference's
  std::vector<float> noise;   // its rounding noise at each of them
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  const Result<GoldenFile> file = GoldenFile::open("trained.safetensors");
  EXPECT_TRUE(file.ok());
  for (int i = 0; file.ok(); ++i) {
    const std::string prefix = fmt::format("{:02}.", i);
    if (!file->has(prefix + "ids")) break;
    all.push_back({file->integers(prefix + "ids"), file->integers(prefix + "greedy_ids"),
                   file->floats(prefix + "rounding_noise")});
    all.back().greedy.resize(std::min(all.back().greedy.size(), answer_tokens()));
    all.back().noise.resize(all.back().greedy.size());
  }
  return all;
}

/// Where `ranks` ranks run: on the CPU, or on the GPUs of KOHO_TEST_DEVICES.
DeviceOptions test_device(std::int64_t ranks) {
  return names_gpus() ? gpu_devices(ranks, "") : DeviceOptions();
}

/// Whether the machine that KOHO_TEST_DEVICES names has a GPU for each of so many ranks.
bool has_devices(std::int64_t ranks) {
  const char* list = std::getenv("KOHO_TEST_DEVICES");
  const std::int64_t named = list == nullptr ? 0 : 1 + std::ranges::count(std::string(list), ',');
  return named <= 1 || named >= ranks;
}

/// A greedy answer, and how far apart its two best logits were at each token.
struct Answer {
  std::vector<Token> ids;
  std::vector<float> gaps;
  std::vector<float> logprobs;
};

Answer read(OutputStream& stream) {
  Answer answer;
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = stream.wait(event, 1'000'000);
    if (read == OutputStream::Read::done) break;
    if (read == OutputStream::Read::nothing || event.token < 0) continue;
    answer.ids.push_back(event.token);
    answer.gaps.push_back(event.top[0].logprob - event.top[1].logprob);
    answer.logprobs.push_back(event.top[0].logprob);
  }
  EXPECT_EQ(stream.summary().ending, Ending::completed) << stream.summary().error.message;
  return answer;
}

/// `alone`: each prompt once the one before has its answer, not all at once.
std::vector<Answer> answers(const std::vector<Golden>& prompts,
                            RuntimeOptions options,
                            bool alone = false) {
  const std::optional<bool> deterministic = options.device.deterministic;
  options.device = test_device(options.ranks);
  options.device.deterministic = deterministic;
  const char* executor = std::getenv("KOHO_TEST_EXECUTOR");
  options.executor = executor != nullptr && std::string_view(executor) == "process"
                         ? ExecutorKind::process
                         : ExecutorKind::thread;
  options.worker = KOHO_BINARY;
  options.sequences_max = 16;
  options.context_max = 1024;
  // Processes that share a GPU take turns, some rows of a collective each: 83 s for warm-up's
  // largest steps of 8,192 tokens.
  options.prefill_chunk = 256;
  auto runtime = Runtime::start(KOHO_SOURCE_DIR "/models/tiny", options);
  EXPECT_TRUE(runtime.ok()) << runtime.error().message;
  if (!runtime.ok()) return {};
  std::vector<std::shared_ptr<OutputStream>> streams;
  std::vector<Answer> all;
  for (const Golden& golden : prompts) {
    Request request;
    request.prompt = golden.prompt;
    request.max_tokens = static_cast<std::int32_t>(golden.greedy.size());
    request.sampling.temperature = 0.0;
    request.sampling.logprobs = 2;
    streams.push_back(*(*runtime)->engine().submit(std::move(request)));
    if (alone) all.push_back(read(*streams.back()));
  }
  if (alone) return all;
  for (const auto& stream : streams) all.push_back(read(*stream));
  return all;
}

/// The first token that differs, or the number of tokens.
std::size_t first_difference(const std::vector<Token>& a, const std::vector<Token>& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// The rounding noise at token `i` of one rank's answer: the reference's there, or, where that took
/// another way before, its median.
float noise_at(const Golden& golden, const Answer& one_rank, std::size_t i) {
  if (first_difference(one_rank.ids, golden.greedy) >= i) return golden.noise[i];
  std::vector<float> sorted = golden.noise;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

class GreedyOverRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    prompts_ = goldens();
    one_rank_ = answers(prompts_, {});
  }

  static void check(std::int64_t ranks, AttentionLayout attention) {
    if (!has_devices(ranks)) GTEST_SKIP() << "fewer GPUs than ranks";
    for (const ExpertLayout experts :
         {ExpertLayout::expert_parallel, ExpertLayout::tensor_parallel}) {
      const std::string name = fmt::format(
          "{} ranks, attention {}, experts {}", ranks, attention == kTensorParallel ? "tp" : "dp",
          experts == ExpertLayout::expert_parallel ? "whole" : "sliced");
      SCOPED_TRACE(name);
      const std::vector<Answer> found =
          answers(prompts_, {.ranks = ranks, .experts = experts, .attention = attention});
      ASSERT_EQ(found.size(), prompts_.size());
      std::size_t equal = 0;
      std::string differences;
      for (std::size_t p = 0; p < prompts_.size(); ++p) {
        const Answer& one = one_rank_[p];
        ASSERT_EQ(found[p].ids.size(), one.ids.size()) << "prompt " << p;
        const std::size_t i = first_difference(one.ids, found[p].ids);
        if (i == one.ids.size()) {
          ++equal;
          continue;
        }
        const float noise = noise_at(prompts_[p], one, i);
        EXPECT_LT(one.gaps[i], noise) << "prompt " << p << ", token " << i;
        differences += fmt::format("\n  prompt {} to token {}: best {:.3f} apart, noise {:.3f}", p,
                                   i, one.gaps[i], noise);
      }
      fmt::print("{}: {} of {} answers equal{}\n", name, equal, prompts_.size(), differences);
    }
  }

  /// Under `deterministic` an answer has the same bits alone and among others.
  static void check_batch_invariance(std::int64_t ranks, AttentionLayout attention) {
    if (!has_devices(ranks)) GTEST_SKIP() << "fewer GPUs than ranks";
    const RuntimeOptions options{
        .device = {.deterministic = true}, .ranks = ranks, .attention = attention};
    const std::vector<Answer> together = answers(prompts_, options);
    const std::vector<Answer> alone = answers(prompts_, options, true);
    ASSERT_EQ(together.size(), prompts_.size());
    ASSERT_EQ(alone.size(), prompts_.size());
    for (std::size_t p = 0; p < prompts_.size(); ++p) {
      EXPECT_EQ(together[p].ids, alone[p].ids) << "prompt " << p;
      EXPECT_EQ(together[p].logprobs, alone[p].logprobs) << "prompt " << p;
    }
  }

  static std::vector<Golden> prompts_;
  static std::vector<Answer> one_rank_;
};

std::vector<Golden> GreedyOverRanks::prompts_;
std::vector<Answer> GreedyOverRanks::one_rank_;

TEST_F(GreedyOverRanks, ThereIsEnoughToCompare) {
  ASSERT_GE(prompts_.size(), 16U);
  for (const Answer& answer : one_rank_)
    EXPECT_GE(answer.ids.size(), std::min<std::size_t>(answer_tokens(), 128));
}

TEST_F(GreedyOverRanks, TwoTensorParallel) {
  check(2, kTensorParallel);
}

TEST_F(GreedyOverRanks, FourTensorParallel) {
  check(4, kTensorParallel);
}

TEST_F(GreedyOverRanks, EightTensorParallel) {
  check(8, kTensorParallel);
}

TEST_F(GreedyOverRanks, AnAnswerOfTwoRanksDoesNotDependOnItsBatch) {
  check_batch_invariance(2, kTensorParallel);
}

TEST_F(GreedyOverRanks, AnAnswerOfTwoDataParallelRanksDoesNotDependOnItsBatch) {
  check_batch_invariance(2, kDataParallel);
}

TEST_F(GreedyOverRanks, TwoDataParallel) {
  check(2, kDataParallel);
}

TEST_F(GreedyOverRanks, FourDataParallel) {
  check(4, kDataParallel);
}

TEST_F(GreedyOverRanks, EightDataParallel) {
  check(8, kDataParallel);
}

}  // namespace
}  // namespace koho::testing
