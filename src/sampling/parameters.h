// SPDX-License-Identifier: Apache-2.0
// What a caller may ask of the next token, checked once. The flat row that samplers read of it:
// sampling/sampling_row.h.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sampling/sampling_row.h"

namespace koho {

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

/// The row of a request; slots and ranges are left at their defaults.
SamplingRow make_sampling_row(const SamplingParameters& parameters,
                              std::uint64_t seed,
                              std::int64_t output_position);

}  // namespace koho
