// SPDX-License-Identifier: Apache-2.0
// The flat row that every sampler reads, on the host and on a device: plain data, copied as it is.
// This header includes nothing heavy, so that kernels can include it. make_sampling_row
// (sampling/parameters.h) fills a row from a request; sampling/sampler.cpp defines what it means.
#pragma once

#include <cstdint>
#include <type_traits>

namespace koho {

inline constexpr int kTopLogprobsMax = 20;  // alternatives beside the sampled token, OpenAI's limit

/// One row of a sampling step.
struct SamplingRow {
  std::uint64_t seed = 0;
  std::int64_t output_position = 0;  // index of this token among the request's output tokens
  float temperature = 0.0F;          // 0 = greedy
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
  std::int32_t logprobs = -1;  // alternatives to return, -1 = none and no logprob either
};
static_assert(std::is_trivially_copyable_v<SamplingRow>);
static_assert(sizeof(SamplingRow) == 64);

/// One entry of the flat bias list of a step.
struct LogitBias {
  std::int32_t token = 0;
  float bias = 0.0F;
};
static_assert(sizeof(LogitBias) == 8);

}  // namespace koho
