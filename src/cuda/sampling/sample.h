// SPDX-License-Identifier: Apache-2.0
// The launcher of sampling. What it computes: sampling/sampler.h.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace koho::cuda {

/// SamplingRow and LogitBias of sampling/parameters.h, whose includes are too heavy for a kernel;
/// the backend asserts that they are the same bytes.
struct SampleRow {
  std::uint64_t seed;
  std::int64_t output_position;
  float temperature;
  float top_p;
  float min_p;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  std::int32_t top_k;
  std::int32_t counts_slot;
  std::int32_t mask_row;
  std::int32_t bias_begin;
  std::int32_t bias_count;
  std::int32_t logprobs;
};
struct SampleBias {
  std::int32_t token;
  float bias;
};
constexpr int kSampleTopMax = 20;         // kTopLogprobsMax
constexpr int kSampleTokensMax = 163840;  // of a vocabulary: what eight CTAs hold

/// From so many rows on a CTA streams a row with thresholds (sample_threshold_stream.cu); with fewer, eight
/// CTAs cut a row (sample_threshold_cluster.cu). Measured: at 16 rows streaming takes 1.15 and 1.3 times as long
/// (top_k, top_p), at 32 1.0 and 0.8 times.
constexpr std::int64_t kSampleStreamRows = 32;
/// The id of a row that sample_threshold_stream.cu leaves to the kernel behind it.
constexpr std::int32_t kSampleDeferred = -2;

struct Sample {
  const float* logits = nullptr;  // [R, V]
  std::int64_t logits_stride = 0;
  const SampleRow* rows = nullptr;
  const SampleBias* biases = nullptr;
  const std::int32_t* masks = nullptr;  // [M, ceil(V/32)]
  std::int32_t* counts = nullptr;       // [slots, V]
  std::uint16_t* nonzero = nullptr;     // [slots, race_groups(V)]: which members' counts are not 0
  std::int64_t row_count = 0;
  int vocabulary = 0;
  int tokens = 0;
  std::int32_t* ids = nullptr;
  float* logprobs = nullptr;
  std::int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  bool streamed = false;  // the streaming kernel has run: only what it left is to be done
};
cudaError_t launch_sample(const Sample& parameters, cudaStream_t stream);

}  // namespace koho::cuda
