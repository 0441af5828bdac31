// SPDX-License-Identifier: Apache-2.0
// Every way to share a model among ranks against one rank and against the reference's goldens.
//
// One rank and several compute the same function; they differ where a sum over columns or experts
// is cut: each part is rounded to BF16 before the parts are added, and where FP8 activations are
// quantised from a rank's own columns. Both are roundings of the kind and size that the goldens'
// noise measures, so the goldens' rule holds for every sharding as it stands (docs/goldens.md, rule
// 1): distance from the reference's float32 run <= 1.35 * noise + 0.005. One rank's roundings and
// several ranks' are not the same, so their differences from that run add at right angles or less:
// one rank and several must be within sqrt(2) times the bound. That the rules can tell, a part that
// is lost once shows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "tensor/number.h"
#include "tests/golden/distance.h"
#include "tests/golden/golden_file.h"
#include "tests/sharding/rank_group.h"
#include "tests/support/environment.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_devices.h"

namespace koho::testing {
namespace {

constexpr AttentionLayout kTensorParallel = AttentionLayout::tensor_parallel;
constexpr AttentionLayout kDataParallel = AttentionLayout::data_parallel;

std::string describe(const Shard& shard) {
  return fmt::format("{} ranks, attention {}, experts {}", shard.ranks,
                     shard.attention == kTensorParallel ? "tp" : "dp",
                     shard.experts == ExpertLayout::expert_parallel ? "whole" : "sliced");
}

/// A random checkpoint of the goldens, written to a directory, with what the reference says of it.
struct Subject {
  RandomCheckpointSpec spec;
  TemporaryDirectory directory;
  Prompt prompt;
  std::vector<float> exact;     // [T, V] the reference's float32 run
  double noise = 0.0;           // of its bfloat16 run
  std::vector<float> one_rank;  // [T, V]

  double bound() const { return median_bound(noise); }
  std::size_t width() const { return static_cast<std::size_t>(spec.vocab_size); }
  std::int64_t tokens() const { return static_cast<std::int64_t>(prompt.size()); }
};

std::vector<RandomCheckpointSpec> all_specs() {
  const Result<std::string> text = read_file(golden_path("checkpoints.json"), 1 << 20);
  if (!text.ok()) return {};
  Result<std::vector<RandomCheckpointSpec>> specs = parse_random_checkpoints(*text);
  return specs.ok() ? std::move(specs).value() : std::vector<RandomCheckpointSpec>{};
}

std::unique_ptr<Subject> make_subject(const RandomCheckpointSpec& spec) {
  auto subject = std::make_unique<Subject>();
  subject->spec = spec;
  write_random_checkpoint(subject->directory.path(), spec);
  const Result<GoldenFile> golden = GoldenFile::open(spec.name + ".safetensors");
  EXPECT_TRUE(golden.ok());
  subject->prompt = golden->integers("ids");
  subject->exact = golden->floats("f32_run");
  subject->noise = median_distance(golden->floats("bf16_run"), subject->exact, subject->width());
  Result<RankGroup> one = RankGroup::load(subject->directory.path(), {}, subject->tokens());
  EXPECT_TRUE(one.ok()) << one.error().message;
  const auto logits = one->prefill(std::vector<Prompt>{subject->prompt}, {});
  EXPECT_TRUE(logits.ok()) << logits.error().message;
  subject->one_rank = logits->front();
  return subject;
}

std::unique_ptr<Subject> make_subject(const std::string& name) {
  for (const RandomCheckpointSpec& spec : all_specs())
    if (spec.name == name) return make_subject(spec);
  ADD_FAILURE() << "no checkpoint " << name;
  return std::make_unique<Subject>();
}

/// The prompt's logits from a group; under data-parallel attention it lives on `owner`.
Result<std::vector<float>> prompt_logits(const Subject& subject,
                                         const Shard& shard,
                                         std::int64_t owner = 0,
                                         const Interposer& interpose = {}) {
  KOHO_TRY_ASSIGN(RankGroup group,
                  RankGroup::load(subject.directory.path(), shard, subject.tokens(), interpose));
  KOHO_TRY_ASSIGN(const auto logits,
                  group.prefill(std::vector<Prompt>{subject.prompt}, std::vector{owner}));
  return logits.front();
}

/// Holds a sharding to the rules above.
void check(const Subject& subject, const Shard& shard) {
  SCOPED_TRACE(subject.spec.name + ", " + describe(shard));
  const Result<std::vector<float>> logits = prompt_logits(subject, shard, shard.ranks - 1);
  ASSERT_TRUE(logits.ok()) << logits.error().message;
  const double to_exact = median_distance(*logits, subject.exact, subject.width());
  const double to_one = median_distance(*logits, subject.one_rank, subject.width());
  EXPECT_LE(to_exact, subject.bound());
  EXPECT_LE(to_one, std::sqrt(2.0) * subject.bound());
  fmt::print("{:20} {:42} noise {:.4f}  to the float32 run {:.4f} = {:.2f}x  to one rank {:.4f}\n",
             subject.spec.name, describe(shard), subject.noise, to_exact, to_exact / subject.noise,
             to_one);
}

void check_all(const std::string& name, const std::vector<std::int64_t>& rank_counts) {
  const std::unique_ptr<Subject> subject = make_subject(name);
  const std::uint64_t only = number_from_environment("KOHO_TEST_RANKS", 0);  // on GPUs
  for (const AttentionLayout attention : {kTensorParallel, kDataParallel})
    for (const std::int64_t ranks : rank_counts) {
      if (only > 0 && std::cmp_not_equal(ranks, only)) continue;
      for (const ExpertLayout experts :
           {ExpertLayout::expert_parallel, ExpertLayout::tensor_parallel})
        check(*subject, {.ranks = ranks, .experts = experts, .attention = attention});
    }
}

TEST(Sharding, Bf16OverTwoFourAndEightRanksIsOneRankWithinRounding) {
  check_all("cut_by_eight", {2, 4, 8});
}

TEST(Sharding, TwoKeyValueHeadsOverTwoRanks) {
  check_all("cut_by_two", {2});
}

TEST(Sharding, Fp8WithAScaleARowKeepsTheRuleOverTwoFourAndEightRanks) {
  check_all("cut_channel", {2, 4, 8});
}

TEST(Sharding, Fp8WithAScaleATensorKeepsTheRuleOverTwoFourAndEightRanks) {
  check_all("cut_tensor", {2, 4, 8});
}

TEST(Sharding, Fp8InBlocksKeepsTheRuleOverTwoFourAndEightRanks) {
  check_all("cut_block", {2, 4, 8});
}

TEST(Sharding, DataParallelAttentionRunsEveryCheckpointThatItsExpertsAllow) {
  int checked = 0;
  for (const RandomCheckpointSpec& spec : all_specs()) {
    if (spec.first_k_dense_replace >= spec.num_hidden_layers || spec.name.starts_with("cut_"))
      continue;
    if (spec.n_routed_experts % 2 != 0) continue;
    const std::unique_ptr<Subject> subject = make_subject(spec);
    check(*subject, {.ranks = 2, .attention = kDataParallel});
    ++checked;
  }
  EXPECT_GE(checked, 8);
}

/// Drops a partial sum: in the `lost`-th collective that sums, this rank contributes zeros.
class DropsAPartialSum final : public Communicator {
 public:
  DropsAPartialSum(std::unique_ptr<Communicator> real, int lost)
      : real_(std::move(real)), lost_(lost) {}

  std::int64_t rank() const override { return real_->rank(); }
  std::int64_t ranks() const override { return real_->ranks(); }
  Status all_reduce(TensorView values) override {
    if (collectives_++ == lost_) clear(values);
    return real_->all_reduce(values);
  }
  Status reserve(const CollectiveSizes& sizes) override { return real_->reserve(sizes); }
  Status meet() override { return real_->meet(); }
  Result<bool> all_reduce_add_norm(const Activation& /*out*/,
                                   TensorView /*residual*/,
                                   TensorView /*block_output*/,
                                   ConstTensorView /*weight*/,
                                   float /*eps*/) override {
    return false;  // so that every sum comes through all_reduce()
  }
  Status exchange_rows(TensorView out, ConstTensorView part) override {
    return real_->exchange_rows(out, part);
  }
  Status all_gather_rows(std::span<const TensorView> tensors) override {
    return real_->all_gather_rows(tensors);
  }
  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override {
    return real_->dispatch(routes, rows);
  }
  Status wait_for_dispatch() override { return real_->wait_for_dispatch(); }
  Status combine(TensorView out, ConstTensorView results) override {
    if (collectives_++ == lost_)
      clear({const_cast<std::byte*>(results.data), results.dtype, results.shape});
    return real_->combine(out, results);
  }
  Status check() override { return real_->check(); }
  void give_up() override { real_->give_up(); }

 private:
  static void clear(TensorView values) {
    std::memset(values.data, 0, static_cast<std::size_t>(values.bytes()));
  }
  std::unique_ptr<Communicator> real_;
  int lost_;
  int collectives_ = 0;
};

/// The distance from the float32 run, in units of the bound, if one rank's part is lost in one
/// collective.
double distance_without_partial_sum(const Subject& subject, const Shard& shard, int lost) {
  const Interposer interpose = [&](std::unique_ptr<Communicator> real, std::int64_t rank) {
    return rank == 1 ? std::make_unique<DropsAPartialSum>(std::move(real), lost) : std::move(real);
  };
  const Result<std::vector<float>> logits = prompt_logits(subject, shard, 0, interpose);
  EXPECT_TRUE(logits.ok());
  return median_distance(*logits, subject.exact, subject.width()) / subject.bound();
}

TEST(Sharding, OneLostPartialSumBreaksTheRule) {
  if (names_gpus()) GTEST_SKIP() << "loses parts in the host's memory";
  const std::unique_ptr<Subject> subject = make_subject("cut_by_eight");
  for (const ExpertLayout experts :
       {ExpertLayout::expert_parallel, ExpertLayout::tensor_parallel}) {
    // Attention and FFN of three layers; then the experts of two.
    const Shard tensor_parallel{.ranks = 8, .experts = experts};
    for (int collective = 0; collective < 6; ++collective) {
      const double distance = distance_without_partial_sum(*subject, tensor_parallel, collective);
      EXPECT_GT(distance, 1.0) << describe(tensor_parallel) << ", collective " << collective;
      fmt::print("{:42} without a partial sum of collective {}: {:.2f} of the bound\n",
                 describe(tensor_parallel), collective, distance);
    }
    // Over eight ranks most tokens would not miss one rank's experts.
    const Shard data_parallel{.ranks = 4, .experts = experts, .attention = kDataParallel};
    for (int collective = 0; collective < 2; ++collective) {
      const double distance = distance_without_partial_sum(*subject, data_parallel, collective);
      EXPECT_GT(distance, 1.0) << describe(data_parallel) << ", collective " << collective;
      fmt::print("{:42} without a partial sum of collective {}: {:.2f} of the bound\n",
                 describe(data_parallel), collective, distance);
    }
  }
}

TEST(Sharding, DataParallelAttentionIsIndependentOfOwnersAndOtherPrompts) {
  const std::unique_ptr<Subject> subject = make_subject("cut_channel");
  const Prompt& prompt = subject->prompt;
  const auto part = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
    return Prompt(prompt.begin() + begin, prompt.begin() + end);
  };
  const std::vector<Prompt> prompts{part(0, 17), part(5, 6), part(40, 110), part(0, 17),
                                    part(3, 20)};
  std::int64_t tokens = 0;
  for (const Prompt& one : prompts) tokens += static_cast<std::int64_t>(one.size());
  for (const ExpertLayout experts :
       {ExpertLayout::expert_parallel, ExpertLayout::tensor_parallel}) {
    Result<RankGroup> group =
        RankGroup::load(subject->directory.path(),
                        {.ranks = 4, .experts = experts, .attention = kDataParallel}, tokens);
    ASSERT_TRUE(group.ok()) << group.error().message;
    const auto together = group->prefill(prompts, std::vector<std::int64_t>{0, 1, 2, 3, 0});
    ASSERT_TRUE(together.ok()) << together.error().message;
    EXPECT_EQ((*together)[0], (*together)[3]) << "equal prompts on two ranks";
    const auto on_one_rank = group->prefill(prompts, std::vector<std::int64_t>{2, 2, 2, 2, 2});
    ASSERT_TRUE(on_one_rank.ok()) << on_one_rank.error().message;
    EXPECT_EQ(*on_one_rank, *together);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto alone =
          group->prefill(std::vector<Prompt>{prompts[i]}, std::vector<std::int64_t>{3});
      ASSERT_TRUE(alone.ok()) << alone.error().message;
      EXPECT_EQ((*alone)[0], (*together)[i]) << "prompt " << i;
    }
  }
}

TEST(Sharding, MoreTokensThanTheGroupCanHoldAreAnErrorForAllRanks) {
  const std::unique_ptr<Subject> subject = make_subject("cut_channel");
  Result<RankGroup> group = RankGroup::load(
      subject->directory.path(),
      {.ranks = 2, .experts = ExpertLayout::tensor_parallel, .attention = kDataParallel}, 20);
  ASSERT_TRUE(group.ok()) << group.error().message;
  const Prompt prompt(subject->prompt.begin(), subject->prompt.begin() + 15);
  const auto logits = group->prefill(std::vector{prompt, prompt}, std::vector<std::int64_t>{0, 1});
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.error().code, ErrorCode::resource_exhausted) << logits.error().message;
}

/// The error of loading a checkpoint so; empty if it loads.
std::string refusal(const Subject& subject, const Shard& shard) {
  const Result<RankGroup> group = RankGroup::load(subject.directory.path(), shard, 8);
  if (group.ok()) return "";
  EXPECT_EQ(group.error().code, ErrorCode::unsupported);
  return group.error().message;
}

TEST(Sharding, UnevenDivisionsAreRejectedWithTheReason) {
  const auto expect = [](const std::string& found, const std::string& reason) {
    EXPECT_NE(found.find(reason), std::string::npos) << "found: " << found;
  };
  const ExpertLayout sliced = ExpertLayout::tensor_parallel;
  const std::unique_ptr<Subject> two = make_subject("cut_by_two");
  expect(refusal(*two, {.ranks = 4}), "4 ranks cannot divide 6 query heads evenly");
  expect(refusal(*two, {.ranks = 3}), "3 ranks cannot divide 2 key/value heads evenly");
  expect(refusal(*two, {.ranks = 4, .attention = kDataParallel}),
         "4 ranks cannot divide 6 experts evenly");
  EXPECT_EQ(refusal(*two, {.ranks = 3, .attention = kDataParallel}), "")
      << "heads are whole under data-parallel attention";
  expect(refusal(*two, {.ranks = 3, .experts = sliced, .attention = kDataParallel}),
         "3 ranks cannot divide 40 columns of an expert evenly");
  EXPECT_EQ(refusal(*two, {.ranks = 8, .experts = sliced, .attention = kDataParallel}), "");

  const std::unique_ptr<Subject> no_dense = make_subject("bf16_no_dense");
  expect(refusal(*no_dense, {.ranks = 2}), "2 ranks cannot divide 97 rows of the vocabulary");

  const std::unique_ptr<Subject> block = make_subject("cut_block");
  expect(refusal(*block, {.ranks = 16, .experts = sliced, .attention = kDataParallel}),
         "cuts through a block of 128");
}

}  // namespace
}  // namespace koho::testing
