// SPDX-License-Identifier: Apache-2.0
// The flat row that every sampler reads: the one definition for host and kernels, plain data that
// is copied to the device as it is. Includes nothing heavy. make_sampling_row
// (sampling/parameters.h) fills it from a request; sampling/sampler.cpp defines what it means.
#pragma once

#include <cstdint>
#include <type_traits>

namespace koho {

inline constexpr int kTopLogprobsMax = 20;  // as OpenAI's API

/// One row of a sampling step.
struct SamplingRow {
  std::uint64_t seed = 0;
  std::int64_t output_position = 0;  // index of the token to sample among the request's output
  float temperature = 0.0F;          // 0 = greedy
  float top_p = 1.0F;                // 1 = off
  float min_p = 0.0F;                // 0 = off
  float repetition_penalty = 1.0F;   // over prompt and output
  float frequency_penalty = 0.0F;    // over output
  float presence_penalty = 0.0F;     // over output
  std::int32_t top_k = 0;            // 0 = off
  std::int32_t counts_slot = -1;     // row of the token-count table, -1 = no penalties
  std::int32_t mask_row = -1;        // row of the step's token masks, -1 = every token is allowed
  std::int32_t bias_begin = 0;       // range of the step's flat bias list
  std::int32_t bias_count = 0;
  std::int32_t logprobs = -1;  // alternatives wanted, -1 = none, and no log-probability either
};
static_assert(std::is_trivially_copyable_v<SamplingRow>);
static_assert(sizeof(SamplingRow) == 64);

/// One entry of the flat bias list of a step: `bias` is added to the logit of `token`.
struct LogitBias {
  std::int32_t token = 0;
  float bias = 0.0F;
};
static_assert(sizeof(LogitBias) == 8);

}  // namespace koho
