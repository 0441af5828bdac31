// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/arithmetic.h"
#include "sampling/philox.h"

namespace koho {
namespace {

constexpr float kMaskedLogit = -std::numeric_limits<float>::infinity();
constexpr auto kPromptBit = static_cast<std::int32_t>(0x80000000U);

/// An exponential variable of 32 random bits: -log(u), u in (0, 1).
double exponential(std::uint32_t bits) {
  return -std::log((static_cast<double>(bits) + 0.5) * 0x1p-32);
}

/// The sum of exp(logit - largest).
double exp_sum(std::span<const float> logits, float largest) {
  double sum = 0.0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
  return sum;
}

void drop_below(float threshold, std::span<float> logits) {
  for (float& logit : logits)
    if (logit < threshold) logit = kMaskedLogit;
}

/// Keeps tokens at least min_p times as likely as the likeliest.
void keep_min_p(float min_p, std::span<float> logits) {
  if (min_p <= 0.0F) return;
  const float largest = *std::max_element(logits.begin(), logits.end());
  drop_below(largest + std::log(min_p), logits);
}

/// Keeps tokens whose logit is at least the k-th largest; ties stay. `sorted` is scratch.
void keep_top_k(std::int64_t top_k, std::span<float> logits, std::vector<float>& sorted) {
  if (top_k <= 0 || top_k >= static_cast<std::int64_t>(logits.size())) return;
  sorted.assign(logits.begin(), logits.end());
  const auto kth = sorted.begin() + static_cast<std::ptrdiff_t>(top_k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  drop_below(*kth, logits);
}

/// Keeps the likeliest tokens whose renormalised probabilities first add up to top_p; ties stay.
void keep_top_p(float top_p, std::span<float> logits, std::vector<float>& sorted) {
  if (top_p >= 1.0F) return;
  const float largest = *std::max_element(logits.begin(), logits.end());
  if (largest == kMaskedLogit) return;
  const double sum = exp_sum(logits, largest);
  // Tokens less likely than (1 - top_p) / V add up to less than 1 - top_p: the cut never falls
  // among them.
  const double rarest = (1.0 - static_cast<double>(top_p)) / static_cast<double>(logits.size());
  const auto floor =
      static_cast<float>(static_cast<double>(largest) + std::log(rarest * sum)) - 1e-3F;
  sorted.clear();
  for (const float logit : logits)
    if (logit != kMaskedLogit && logit >= floor) sorted.push_back(logit);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double cumulative = 0.0;
  for (const float logit : sorted) {
    cumulative += std::exp(static_cast<double>(logit) - static_cast<double>(largest)) / sum;
    if (cumulative >= static_cast<double>(top_p)) {
      drop_below(logit, logits);
      return;
    }
  }
}

/// The id of the largest logit, the lowest of equals; -1: all are masked.
std::int32_t argmax(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  return *best == kMaskedLogit ? -1 : static_cast<std::int32_t>(best - logits.begin());
}

}  // namespace

Sampler::Sampler(std::int64_t vocabulary) {
  logits_.reserve(static_cast<std::size_t>(vocabulary));
  sorted_.reserve(static_cast<std::size_t>(vocabulary));
  order_.reserve(static_cast<std::size_t>(vocabulary));
}

void Sampler::sample(const SamplingRow& row, const SamplerInput& input, SamplerOutput& out) {
  out.id = -1;
  out.logprob = 0.0F;
  out.top_ids.clear();
  out.top_logprobs.clear();
  const auto real = input.logits.first(static_cast<std::size_t>(input.tokens));
  if (std::any_of(real.begin(), real.end(), [](float logit) { return std::isnan(logit); })) return;
  // The order of the steps is part of the definition: the kernels keep it.
  modify(row, input);  // biases, penalties, mask
  if (row.temperature > 0.0F) {
    for (float& logit : logits_) logit /= row.temperature;
    keep_min_p(row.min_p, logits_);
    keep_top_k(row.top_k, logits_, sorted_);
    keep_top_p(row.top_p, logits_, sorted_);
    out.id = draw(row);
  } else {
    out.id = argmax(logits_);
  }
  if (out.id < 0) return;
  if (!input.counts.empty()) ++input.counts[static_cast<std::size_t>(out.id)];
  if (row.logprobs >= 0) fill_logprobs(row, input, out);
}

/// logits_ = the logits of ids below input.tokens (others never come), then
///   biases are added;
///   repetition penalty, over prompt and output: a positive logit is divided, a negative one
///     multiplied;
///   frequency_penalty * count + presence_penalty is subtracted from output tokens;
///   tokens outside the mask get -infinity.
void Sampler::modify(const SamplingRow& row, const SamplerInput& input) {
  const auto tokens = static_cast<std::size_t>(input.tokens);
  logits_.assign(input.logits.begin(), input.logits.begin() + static_cast<std::ptrdiff_t>(tokens));
  for (const LogitBias& bias : input.biases)
    if (static_cast<std::size_t>(bias.token) < tokens)
      logits_[static_cast<std::size_t>(bias.token)] += bias.bias;
  if (!input.counts.empty()) {
    for (std::size_t id = 0; id < tokens; ++id) {
      const std::int32_t entry = input.counts[id];
      if (entry == 0) continue;
      float& logit = logits_[id];
      logit = logit > 0.0F ? logit / row.repetition_penalty : logit * row.repetition_penalty;
      const std::int32_t times = entry & ~kPromptBit;
      if (times > 0)
        logit -= static_cast<float>(times) * row.frequency_penalty + row.presence_penalty;
    }
  }
  if (input.mask.empty()) return;
  for (std::size_t id = 0; id < tokens; ++id) {
    const auto word = static_cast<std::uint32_t>(input.mask[id / 32]);
    if (((word >> (id % 32)) & 1U) == 0) logits_[id] = kMaskedLogit;
  }
}

/// The kept token with the largest logit + Gumbel noise of (seed, output position, id), which is a
/// sample of the softmax (sampling/philox.h: how a group of tokens shares random bits).
std::int32_t Sampler::draw(const SamplingRow& row) const {
  std::int32_t best = -1;
  double best_score = 0.0;
  const auto tokens = static_cast<std::int32_t>(logits_.size());
  const std::int32_t groups = ceil_div(tokens, kRaceBlock) * (kRaceBlock / kRaceGroup);
  for (std::int32_t group = 0; group < groups; ++group) {
    float largest = kMaskedLogit;
    for (std::int32_t member = 0; member < kRaceGroup; ++member) {
      const std::int32_t token = race_token(group, member);
      if (token < tokens) largest = std::max(largest, logits_[static_cast<std::size_t>(token)]);
    }
    if (largest == kMaskedLogit) continue;
    const RaceDraw race = race_draw(row.seed, row.output_position, group);
    const double earliest = exponential(race.bits) / kRaceGroup;
    if (best >= 0 && static_cast<double>(largest) - std::log(earliest) < best_score) continue;
    for (std::int32_t member = 0; member < kRaceGroup; ++member) {
      const std::int32_t token = race_token(group, member);
      if (token >= tokens || logits_[static_cast<std::size_t>(token)] == kMaskedLogit) continue;
      const double behind = member == race.member
                                ? 0.0
                                : exponential(draw_bits(row.seed, row.output_position, token));
      const double score = static_cast<double>(logits_[static_cast<std::size_t>(token)]) -
                           std::log(earliest + behind);
      if (std::isnan(score) ||
          (best >= 0 && (score < best_score || (score == best_score && token > best))))
        continue;
      best = token;
      best_score = score;
    }
  }
  return best;
}

void Sampler::fill_logprobs(const SamplingRow& row, const SamplerInput& input, SamplerOutput& out) {
  const auto logits = input.logits.first(static_cast<std::size_t>(input.tokens));
  const float largest = *std::max_element(logits.begin(), logits.end());
  const double log_sum = static_cast<double>(largest) + std::log(exp_sum(logits, largest));
  auto logprob = [&](std::int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - log_sum);
  };
  out.logprob = logprob(out.id);
  const auto wanted = std::min<std::size_t>(static_cast<std::size_t>(row.logprobs), logits.size());
  if (wanted == 0) return;
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(wanted),
                    order_.end(), more_likely);
  for (std::size_t i = 0; i < wanted; ++i) {
    out.top_ids.push_back(order_[i]);
    out.top_logprobs.push_back(logprob(order_[i]));
  }
}

}  // namespace koho
