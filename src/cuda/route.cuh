// SPDX-License-Identifier: Apache-2.0
// What the router's kernels share: the choice, and the sums of the two fast forms.
//
// A logit of the fast forms: H is cut into kFastParts parts of whole steps; a part is two chains of
// bf16 mma.sync (first and second half of each step), added; the parts are added in order. A lane
// takes 8 neighbouring elements of a row, tokens and weights alike, which is another order of K and
// the same sum.
#pragma once

#include "cuda/kernels.h"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"

namespace koho::cuda {

constexpr int kRouteStep = 32;  // elements of H
constexpr int kFastParts = 16;
constexpr int kFastStepsMax = 16;  // of a part: H <= 8192
constexpr int kFastExperts = 192;

/// Tokens up to which clusters take 8 of them, not 16.
constexpr std::int64_t kRouteFew = 8;
/// Tokens from which route_many.cu is faster (docs/kernels/README.md).
constexpr std::int64_t kRouteMany = 1024;
cudaError_t launch_route_many(const Route& parameters, cudaStream_t stream);

/// The first step of part `part`.
__device__ __forceinline__ int part_begin(int hidden, int part) {
  return hidden / kRouteStep * part / kFastParts;
}

/// 16 experts times 8 tokens over a step.
__device__ __forceinline__ void multiply_tile(float (&sum)[2][4],
                                              const uint4& low,
                                              const uint4& high,
                                              uint4 tokens) {
  mma_bf16(sum[0], low.x, high.x, low.y, high.y, tokens.x, tokens.y);
  mma_bf16(sum[1], low.z, high.z, low.w, high.w, tokens.z, tokens.w);
}

/// A score in an order that unsigned comparison keeps; 0 is below every score.
__device__ __forceinline__ std::uint32_t rank_key(float score) {
  const std::uint32_t bits = __float_as_uint(score);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ float sigmoid(float logit) {
  return 1.0F / (1.0F + expf(-logit));
}
/// What an expert is selected by; NaN comes last.
__device__ __forceinline__ float selection_score(float score, float bias) {
  const float biased = score + bias;
  return isnan(biased) ? -INFINITY : biased;
}

/// One warp chooses a token's experts: A rounds of a maximum over selection scores, the lower id
/// first among equals. Lane l keeps experts l, l + 32, … in registers, `kEach` at most, sorted, so
/// that a round is a maximum over the lanes' first ones.
template <int kEach>
__device__ void choose(const Route& p,
                       std::int64_t token,
                       const float* scores,
                       const float* selection) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t keys[kEach];
  int experts[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    experts[i] = lane + 32 * i;
    keys[i] = experts[i] < p.experts ? rank_key(selection[experts[i]]) : 0;
  }
#pragma unroll
  for (int round = 0; round < kEach; ++round) {
#pragma unroll
    for (int i = round % 2; i + 1 < kEach; i += 2) {  // neighbours: equals keep their order
      const bool swap = keys[i + 1] > keys[i];
      const std::uint32_t key = swap ? keys[i] : keys[i + 1];
      const int expert = swap ? experts[i] : experts[i + 1];
      keys[i] = swap ? keys[i + 1] : keys[i];
      experts[i] = swap ? experts[i + 1] : experts[i];
      keys[i + 1] = key;
      experts[i + 1] = expert;
    }
  }
  int my_expert = 0;
  for (int slot = 0; slot < p.top_k; ++slot) {
    const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, keys[0]);
    std::uint32_t winners = __ballot_sync(0xFFFFFFFFU, keys[0] == largest);
    if ((winners & (winners - 1)) != 0) {
      const auto first = static_cast<int>(__reduce_min_sync(
          0xFFFFFFFFU, keys[0] == largest ? static_cast<std::uint32_t>(experts[0]) : 0x7FFFFFFFU));
      winners = __ballot_sync(0xFFFFFFFFU, experts[0] == first);
    }
    const int winner = __ffs(static_cast<int>(winners)) - 1;
    const int chosen = __shfl_sync(0xFFFFFFFFU, experts[0], winner);
    if (lane == slot) my_expert = chosen;
    if (lane == winner) {
#pragma unroll
      for (int i = 0; i + 1 < kEach; ++i) {
        keys[i] = keys[i + 1];
        experts[i] = experts[i + 1];
      }
      keys[kEach - 1] = 0;  // taken
    }
  }
  const float my_score = lane < p.top_k ? scores[my_expert] : 0.0F;
  float sum = 0.0F;
  for (int slot = 0; slot < p.top_k; ++slot) sum += __shfl_sync(0xFFFFFFFFU, my_score, slot);
  if (lane >= p.top_k) return;
  p.ids[token * p.top_k + lane] = my_expert;
  const float weight = p.normalise ? my_score / (sum + 1e-20F) : my_score;
  p.weights[token * p.top_k + lane] = weight * p.scale;
}

}  // namespace koho::cuda
