// SPDX-License-Identifier: Apache-2.0
// The launchers of sampling and their parameters. What sampling computes: sampling/sampler.h. Which
// kernel takes which row: sample.cpp.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "sampling/sampling_row.h"

namespace koho::cuda {

constexpr int kSampleTokensMax = 163840;  // of a vocabulary: what eight CTAs hold of one row

/// The id of a row that sample_threshold_stream.cu leaves to sample_threshold_cluster.cu.
constexpr std::int32_t kSampleDeferred = -2;

struct Sample {
  const float* logits = nullptr;  // [R, V]
  std::int64_t logits_stride = 0;
  const SamplingRow* rows = nullptr;
  const LogitBias* biases = nullptr;
  const std::int32_t* masks = nullptr;  // [M, ceil(V/32)]
  std::int32_t* counts = nullptr;       // [slots, V]
  std::uint16_t* nonzero = nullptr;  // [slots, race_groups(V)]: a bit for each count that is not 0
  std::int64_t row_count = 0;
  int vocabulary = 0;  // V: columns of logits, masks and counts
  int tokens = 0;      // ids from here on are padding and never sampled
  std::int32_t* ids = nullptr;
  float* logprobs = nullptr;
  std::int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  bool streamed = false;  // sample_threshold_stream.cu has run: only what it deferred is left
};
/// Samples all rows and counts what it chose. Errors: cudaErrorInvalidValue if the vocabulary
/// exceeds kSampleTokensMax; else what the launches say.
cudaError_t launch_sample(const Sample& parameters, cudaStream_t stream);

/// Rows without thresholds and log-probabilities, in one pass; leaves the others alone.
cudaError_t launch_sample_gumbel_max(const Sample& parameters, cudaStream_t stream);
/// Rows with thresholds that fit its lists; the ids of the others with thresholds become
/// kSampleDeferred.
cudaError_t launch_sample_threshold_stream(const Sample& parameters, cudaStream_t stream);
/// Rows with thresholds or log-probabilities; those deferred if `streamed`.
cudaError_t launch_sample_threshold_cluster(const Sample& parameters, cudaStream_t stream);

}  // namespace koho::cuda
