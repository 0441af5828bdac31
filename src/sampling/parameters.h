// SPDX-License-Identifier: Apache-2.0
// What a caller may ask of the next token, checked once, and the flat row the samplers read. How a
// row is applied: sampling/sampler.h (the CPU's, and the definition) and the CUDA backend's
// kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace koho {

inline constexpr int kTopLogprobsMax = 20;  // as OpenAI's API
inline constexpr int kLogitBiasMax = 1024;  // entries a request

/// A request's sampling parameters. Defaults leave the model's distribution as it is.
struct SamplingParameters {
  double temperature = 1.0;          // 0 = greedy; 0..2
  double top_p = 1.0;                // (0, 1]
  double min_p = 0.0;                // [0, 1]
  std::int64_t top_k = 0;            // 0 or -1 = off
  double repetition_penalty = 1.0;   // (0, 2], over prompt and output
  double frequency_penalty = 0.0;    // [-2, 2], over output
  double presence_penalty = 0.0;     // [-2, 2], over output
  std::optional<std::int64_t> seed;  // same seed, same text
  std::optional<int> logprobs;       // 0..20 alternatives beside the chosen token's
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // token id, -100..100
};

/// Checks every range; NaN and infinities never pass. `vocabulary` bounds the ids of logit_bias.
/// Errors: invalid_argument naming the field, its range and what was given.
Status validate(const SamplingParameters& parameters, std::int64_t vocabulary);

/// One row of a sampling step: plain data, copied to the device as it is.
struct SamplingRow {
  std::uint64_t seed = 0;
  std::int64_t output_position =
      0;                     // index of the token being drawn among the request's output tokens
  float temperature = 0.0F;  // 0 = greedy
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::int32_t top_k = 0;         // 0 = off
  std::int32_t counts_slot = -1;  // row of the token-count table, -1 = no penalties
  std::int32_t mask_row = -1;     // row of the allowed-token mask, -1 = every token allowed
  std::int32_t bias_begin = 0;    // range of the step's flat bias list
  std::int32_t bias_count = 0;
  std::int32_t logprobs = -1;  // alternatives wanted, -1 = none and no logprob either
};
static_assert(std::is_trivially_copyable_v<SamplingRow>);
static_assert(sizeof(SamplingRow) == 64);

/// One entry of the flat bias list of a step.
struct LogitBias {
  std::int32_t token = 0;
  float bias = 0.0F;
};
static_assert(sizeof(LogitBias) == 8);

/// The row of a request; slots and ranges are left at their defaults.
SamplingRow make_sampling_row(const SamplingParameters& parameters,
                              std::uint64_t seed,
                              std::int64_t output_position);

}  // namespace koho
