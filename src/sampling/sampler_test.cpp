// SPDX-License-Identifier: Apache-2.0
// Sampling against the distribution computed the slow way, and the generator against its published
// vectors.
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "sampling/philox.h"

namespace koho {
namespace {

std::vector<float> random_logits(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

/// Draws `count` tokens at rising output positions.
std::vector<std::int64_t> histogram(const SamplingRow& model,
                                    const SamplerInput& input,
                                    int count) {
  Sampler sampler(static_cast<std::int64_t>(input.logits.size()));
  SamplerOutput out;
  std::vector<std::int64_t> times(input.logits.size());
  SamplingRow row = model;
  for (int i = 0; i < count; ++i) {
    row.output_position = i;
    sampler.sample(row, input, out);
    if (out.id >= 0) ++times[static_cast<std::size_t>(out.id)];
  }
  return times;
}

/// The distribution after all filters, from sorted probabilities in double.
std::vector<double> expected_distribution(const SamplingRow& row, std::span<const float> logits) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < logits.size(); ++i)
    order.emplace_back(static_cast<double>(logits[i]) / static_cast<double>(row.temperature), i);
  std::sort(order.rbegin(), order.rend());
  const double largest = order[0].first;
  std::erase_if(order, [&](const auto& entry) {
    return row.min_p > 0 && std::exp(entry.first - largest) < static_cast<double>(row.min_p);
  });
  if (row.top_k > 0 && order.size() > static_cast<std::size_t>(row.top_k))
    order.resize(static_cast<std::size_t>(row.top_k));
  double sum = 0;
  for (const auto& entry : order) sum += std::exp(entry.first - largest);
  double cumulative = 0;
  std::size_t kept = 0;
  while (kept < order.size() && cumulative < static_cast<double>(row.top_p))
    cumulative += std::exp(order[kept++].first - largest) / sum;
  order.resize(kept);
  std::vector<double> probabilities(logits.size());
  for (const auto& entry : order)
    probabilities[entry.second] = std::exp(entry.first - largest) / sum / cumulative;
  return probabilities;
}

TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, ~0ULL),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822ULL),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, GroupsOfTheRaceHoldEveryTokenOnce) {
  for (std::int32_t token = 0; token < 3 * kRaceBlock; ++token)
    ASSERT_EQ(race_token(race_group(token), race_member(token)), token);
  std::set<std::int32_t> groups;
  for (std::int32_t token = 0; token < 3 * kRaceBlock; ++token) groups.insert(race_group(token));
  EXPECT_EQ(groups.size(), 3U * kRaceBlock / kRaceGroup);
  EXPECT_EQ(*groups.rbegin(), 3 * kRaceBlock / kRaceGroup - 1);
}

TEST(Philox, BitmapsHoldEveryTokenOnce) {
  constexpr std::int32_t kTokens = 3 * kRaceBlock - 200;
  std::set<std::pair<std::int32_t, std::uint32_t>> places;
  for (std::int32_t token = 0; token < kTokens; ++token) {
    ASSERT_LT(race_bitmap_word(token), race_bitmap_words(kTokens));
    places.insert({race_bitmap_word(token), race_bitmap_bit(token)});
  }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(kTokens));
}

TEST(Sampler, DrawsFollowTheDistributionWithinGroupsAndAmongThem) {
  // All members of two groups and some of another; the rest is next to never sampled.
  constexpr std::int32_t kTokens = 2 * kRaceBlock;
  std::vector<float> logits(kTokens, -40.0F);
  std::mt19937 generator(11);
  std::normal_distribution<float> normal(0.0F, 1.5F);
  for (const std::int32_t group : {5, 41})
    for (std::int32_t member = 0; member < kRaceGroup; ++member)
      logits[static_cast<std::size_t>(race_token(group, member))] = normal(generator);
  for (const std::int32_t member : {0, 7, 15})
    logits[static_cast<std::size_t>(race_token(6, member))] = normal(generator);
  SamplingRow row;
  row.seed = 99;
  row.temperature = 1.0F;
  constexpr int kDraws = 100000;
  const auto times = histogram(
      row, {.logits = logits, .tokens = kTokens, .biases = {}, .mask = {}, .counts = {}}, kDraws);
  const std::vector<double> expected = expected_distribution(row, logits);
  double chi_square = 0;
  int cells = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] == -40.0F) continue;
    const double mean = expected[id] * kDraws;
    const double off = static_cast<double>(times[id]) - mean;
    chi_square += off * off / mean;
    ++cells;
  }
  const double freedom = cells - 1;
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 5);
}

TEST(Sampler, DrawsFollowTheFilteredDistribution) {
  const std::vector<float> logits = random_logits(40, 7);
  struct Case {
    float temperature, top_p, min_p;
    int top_k;
  };
  for (const Case& c :
       {Case{1.0F, 1.0F, 0.0F, 0}, Case{0.7F, 0.8F, 0.0F, 0}, Case{1.3F, 1.0F, 0.0F, 5},
        Case{1.0F, 1.0F, 0.1F, 0}, Case{1.5F, 0.9F, 0.02F, 20}}) {
    SamplingRow row;
    row.seed = 12345;
    row.temperature = c.temperature;
    row.top_p = c.top_p;
    row.min_p = c.min_p;
    row.top_k = c.top_k;
    constexpr int kDraws = 200000;
    const auto times = histogram(
        row, {.logits = logits, .tokens = 40, .biases = {}, .mask = {}, .counts = {}}, kDraws);
    const std::vector<double> expected = expected_distribution(row, logits);
    double chi_square = 0;
    int cells = 0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (expected[id] == 0.0) {
        EXPECT_EQ(times[id], 0) << "token " << id << " lies outside the support";
        continue;
      }
      const double mean = expected[id] * kDraws;
      chi_square +=
          (static_cast<double>(times[id]) - mean) * (static_cast<double>(times[id]) - mean) / mean;
      ++cells;
    }
    // Mean and variance of chi-square with n degrees of freedom are n and 2n; 5 sigma is p < 1e-5.
    const double freedom = cells - 1;
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 5);
  }
}

TEST(Sampler, TheSameSeedGivesTheSameTokenAndAnotherSeedAnother) {
  const std::vector<float> logits(1000, 0.0F);
  Sampler sampler(1000);
  SamplerOutput out;
  SamplingRow row;
  row.temperature = 1.0F;
  const SamplerInput input{
      .logits = logits, .tokens = 1000, .biases = {}, .mask = {}, .counts = {}};
  std::set<std::int32_t> sampled;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    row.seed = seed;
    sampler.sample(row, input, out);
    const std::int32_t first = out.id;
    sampler.sample(row, input, out);
    EXPECT_EQ(out.id, first);
    sampled.insert(first);
  }
  EXPECT_GT(sampled.size(), 40U);
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) {
  const std::vector<float> logits{1.0F, 3.0F, 3.0F, 9.0F};
  Sampler sampler(4);
  SamplerOutput out;
  sampler.sample(SamplingRow{},
                 {.logits = logits, .tokens = 3, .biases = {}, .mask = {}, .counts = {}}, out);
  EXPECT_EQ(out.id, 1) << "token 3 lies beyond the tokenizer's vocabulary";
}

TEST(Sampler, MaskBiasAndPenaltiesChangeTheChoice) {
  const std::vector<float> logits{1.0F, 2.0F, 3.0F, -1.0F};
  Sampler sampler(4);
  SamplerOutput out;
  const std::vector<std::int32_t> mask{0b1011};
  sampler.sample(SamplingRow{},
                 {.logits = logits, .tokens = 4, .biases = {}, .mask = mask, .counts = {}}, out);
  EXPECT_EQ(out.id, 1);
  const std::vector<LogitBias> biases{{.token = 3, .bias = 5.0F}};
  sampler.sample(SamplingRow{},
                 {.logits = logits, .tokens = 4, .biases = biases, .mask = {}, .counts = {}}, out);
  EXPECT_EQ(out.id, 3);
  SamplingRow row;
  row.repetition_penalty = 2.0F;
  std::vector<std::int32_t> counts{0, 0, static_cast<std::int32_t>(0x80000000U), 0};
  sampler.sample(row, {.logits = logits, .tokens = 4, .biases = {}, .mask = {}, .counts = counts},
                 out);
  EXPECT_EQ(out.id, 1) << "3 / 2 < 2";
  EXPECT_EQ(counts[1], 1) << "the drawn token is counted";
  row.repetition_penalty = 1.0F;
  row.frequency_penalty = 0.6F;
  counts = {0, 0, 2, 0};
  sampler.sample(row, {.logits = logits, .tokens = 4, .biases = {}, .mask = {}, .counts = counts},
                 out);
  EXPECT_EQ(out.id, 1) << "3 - 1.2 < 2";
  row.frequency_penalty = 0.0F;
  row.presence_penalty = 1.5F;
  counts = {0, 0, 2, 0};
  sampler.sample(row, {.logits = logits, .tokens = 4, .biases = {}, .mask = {}, .counts = counts},
                 out);
  EXPECT_EQ(out.id, 1) << "3 - 1.5 < 2";
}

TEST(Sampler, AnEmptyMaskAndANaNGiveNoToken) {
  std::vector<float> logits{1.0F, 2.0F};
  Sampler sampler(2);
  SamplerOutput out;
  const std::vector<std::int32_t> none{0};
  SamplingRow row;
  for (const float temperature : {0.0F, 1.0F}) {
    row.temperature = temperature;
    sampler.sample(row, {.logits = logits, .tokens = 2, .biases = {}, .mask = none, .counts = {}},
                   out);
    EXPECT_EQ(out.id, -1);
  }
  logits[0] = std::numeric_limits<float>::quiet_NaN();
  sampler.sample(SamplingRow{},
                 {.logits = logits, .tokens = 2, .biases = {}, .mask = {}, .counts = {}}, out);
  EXPECT_EQ(out.id, -1);
}

TEST(Sampler, LogprobsAreThoseOfTheUnmodifiedLogits) {
  const std::vector<float> logits{0.0F, std::log(3.0F), 0.0F, 99.0F};
  Sampler sampler(4);
  SamplerOutput out;
  SamplingRow row;
  row.logprobs = 2;
  const std::vector<LogitBias> biases{{.token = 0, .bias = 50.0F}};
  sampler.sample(row, {.logits = logits, .tokens = 3, .biases = biases, .mask = {}, .counts = {}},
                 out);
  EXPECT_EQ(out.id, 0);
  EXPECT_NEAR(out.logprob, std::log(0.2), 1e-6);
  EXPECT_EQ(out.top_ids, (std::vector<std::int32_t>{1, 0}));
  EXPECT_NEAR(out.top_logprobs[0], std::log(0.6), 1e-6);
}

}  // namespace
}  // namespace koho
