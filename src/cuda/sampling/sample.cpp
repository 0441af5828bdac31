// SPDX-License-Identifier: Apache-2.0
// Which kernels sample a step's rows. A row is the last token of a sequence, so a prompt of 4,096
// tokens is one row. Rows of every kind may be mixed: each kernel finds those that are its own.
//
//   sample_gumbel_max.cu         rows without thresholds (top_k, top_p, min_p) and
//                                log-probabilities
//   sample_threshold_stream.cu   rows with thresholds, a CTA each, in steps of 32 rows and more
//   sample_threshold_cluster.cu  all other rows, 8 CTAs each
#include "cuda/sampling/sample.h"

namespace koho::cuda {
namespace {

/// From so many rows on, a CTA streams a row with thresholds. Streaming takes 1.15 (top_k) and 1.3
/// times (top_p) as long as clusters at 16 rows, 1.0 and 0.8 times at 32.
constexpr std::int64_t kSampleStreamRows = 32;

}  // namespace

cudaError_t launch_sample(const Sample& p, cudaStream_t stream) {
  if (p.vocabulary > kSampleTokensMax) return cudaErrorInvalidValue;
  cudaError_t status = launch_sample_gumbel_max(p, stream);
  if (status != cudaSuccess) return status;
  Sample rest = p;
  rest.streamed = p.row_count >= kSampleStreamRows;
  if (rest.streamed) status = launch_sample_threshold_stream(rest, stream);
  return status != cudaSuccess ? status : launch_sample_threshold_cluster(rest, stream);
}

}  // namespace koho::cuda
