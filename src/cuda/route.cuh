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

/// Up to so many tokens clusters take 8 of them, then 16; then clusters of another kernel 16, and a
/// CTA 64 (route_many.cu). Measured: 8 a cluster take 0.78, 1.02 and 1.12 times as long as 16 at
/// 16, 32 and 64 tokens; 16 a cluster take 12 us at 256 tokens and as much for each 256 more,
/// route_many.cu 96 us to 8,192.
constexpr std::int64_t kRouteFewest = 16;
constexpr std::int64_t kRouteFew = 64;
constexpr std::int64_t kRouteMany = 2048;
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

/// Right to some 2^-22 of itself, and to 2^-24 |logit| more for what lies far below zero.
__device__ __forceinline__ float sigmoid(float logit) {
  return __fdividef(1.0F, 1.0F + exp2_approximate(-1.4426950408889634F * logit));
}
/// What an expert is selected by; NaN comes last.
__device__ __forceinline__ float selection_score(float score, float bias) {
  const float biased = score + bias;
  return isnan(biased) ? -INFINITY : biased;
}

/// Writes an expert of a token: lane `slot` has the expert, its score and the sum of all scores.
__device__ __forceinline__ void write_weight(
    const Route& p, std::int64_t token, int expert, float score, float sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= p.top_k) return;
  p.ids[token * p.top_k + lane] = expert;
  const float weight = p.normalise ? score / (sum + 1e-20F) : score;
  p.weights[token * p.top_k + lane] = weight * p.scale;
}

/// Writes a token's experts: lane `slot` has `expert`. All lanes of a warp.
__device__ __forceinline__ void write_choice(const Route& p,
                                             std::int64_t token,
                                             const float* scores,
                                             int expert) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float score = lane < p.top_k ? scores[expert] : 0.0F;
  float sum = 0.0F;
  for (int slot = 0; slot < p.top_k; ++slot) sum += __shfl_sync(0xFFFFFFFFU, score, slot);
  write_weight(p, token, expert, score, sum);
}

/// One warp chooses a token's experts: A rounds of a maximum over selection scores, the lower id
/// first among equals. Lane l keeps experts l, l + 32, … in registers, `kEach` at most.
template <int kEach>
__device__ void choose(const Route& p,
                       std::int64_t token,
                       const float* scores,
                       const float* selection) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = lane + 32 * i;
    keys[i] = expert < p.experts ? ordered(selection[expert]) : 0;
  }
  int my_expert = 0;
  for (int slot = 0; slot < p.top_k; ++slot) {
    std::uint32_t best = 0;
    int best_expert = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (keys[i] <= best) continue;
      best = keys[i];
      best_expert = lane + 32 * i;
    }
    const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, best);
    const int chosen = static_cast<int>(__reduce_min_sync(
        0xFFFFFFFFU, best == largest ? static_cast<std::uint32_t>(best_expert) : 0x7FFFFFFFU));
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (chosen == lane + 32 * i) keys[i] = 0;  // taken
    if (lane == slot) my_expert = chosen;
  }
  write_choice(p, token, scores, my_expert);
}

/// How many of `kCount` keys come before `mine`, which is number `place` of them: larger ones, and
/// equal ones of lower numbers.
template <int kCount>
__device__ __forceinline__ int keys_before(const std::uint32_t* keys,
                                           std::uint32_t mine,
                                           int place) {
  int before = 0;
  int also = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + i);
    before += four.x > (i < place ? mine - 1 : mine) ? 1 : 0;
    also += four.y > (i + 1 < place ? mine - 1 : mine) ? 1 : 0;
    before += four.z > (i + 2 < place ? mine - 1 : mine) ? 1 : 0;
    also += four.w > (i + 3 < place ? mine - 1 : mine) ? 1 : 0;
  }
  return before + also;
}

constexpr int kChoiceTop = 8;
constexpr int kChoiceWarps = kFastExperts / 32;
constexpr int kListed = kChoiceWarps * kChoiceTop;
constexpr int kListedLanes = 4;  // that rank one of them together
static_assert(kListed % (4 * kListedLanes) == 0 && kListed % (32 / kListedLanes) == 0);

struct Choice {
  alignas(16) std::uint32_t keys[kFastExperts];
  alignas(16) std::uint32_t listed[kListed];  // of each warp's first eight; 0 = nobody
  int experts[kListed];
  float listed_scores[kListed];
  int chosen[kChoiceTop];
  float chosen_scores[kChoiceTop];
  float scores[kFastExperts];  // of a larger choice
};

/// The same by a whole CTA, whose thread e has the logit of expert e: each warp ranks its 32 by
/// counting, and the first eight of every warp are ranked among themselves. All threads.
__device__ __forceinline__ void choose_together(
    const Route& p, std::int64_t token, float logit, float bias, Choice& choice) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const float score = sigmoid(logit);
  const float selected = selection_score(score, bias);
  const bool few = p.top_k <= kChoiceTop;
  if (warp < kChoiceWarps) {
    const std::uint32_t key = thread < p.experts ? ordered(selected) : 0;
    choice.keys[thread] = few ? key : __float_as_uint(selected);
    if (few) {
      __syncwarp();
      const int before = key != 0 ? keys_before<32>(choice.keys + warp * 32, key, lane) : lane;
      if (before < kChoiceTop) {
        choice.listed[warp * kChoiceTop + before] = key;
        choice.experts[warp * kChoiceTop + before] = thread;
        choice.listed_scores[warp * kChoiceTop + before] = score;
      }
    } else {
      choice.scores[thread] = score;
    }
  }
  if (thread < 32)  // the warps that a CTA of few experts lacks
    for (int i = threads / 32 * kChoiceTop + lane; i < kListed; i += 32) choice.listed[i] = 0;
  __syncthreads();
  if (!few) {
    if (warp == 0 && token < p.tokens)
      choose<kChoiceWarps>(p, token, choice.scores, reinterpret_cast<const float*>(choice.keys));
    return;
  }
  for (int i = thread / kListedLanes; i < kListed; i += threads / kListedLanes) {
    constexpr int kEach = kListed / kListedLanes;
    const std::uint32_t key = choice.listed[i];
    const int first = thread % kListedLanes * kEach;
    int before = keys_before<kEach>(choice.listed + first, key, i - first);
    before += __shfl_xor_sync(0xFFFFFFFFU, before, 1);
    before += __shfl_xor_sync(0xFFFFFFFFU, before, 2);
    if (first != 0 || key == 0 || before >= kChoiceTop) continue;
    choice.chosen[before] = choice.experts[i];
    choice.chosen_scores[before] = choice.listed_scores[i];
  }
  __syncthreads();
  if (warp != 0 || token >= p.tokens) return;
  const int expert = choice.chosen[lane % kChoiceTop];
  const float mine = lane < p.top_k ? choice.chosen_scores[lane % kChoiceTop] : 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int slot = 0; slot < kChoiceTop; ++slot) sum += __shfl_sync(0xFFFFFFFFU, mine, slot);
  write_weight(p, token, expert, mine, sum);
}

}  // namespace koho::cuda
