// SPDX-License-Identifier: Apache-2.0
// What the router's kernels share: how a logit is summed, so that all of them give the same bits,
// and the top-k by a warp. Contract: Backend::route. Which kernel runs when:
// docs/kernels/router.md.
//
//   logit   split-K: H is cut into kRouteSplitK = 16 splits of whole steps of 32 elements. Each has
//           two chains of bf16 mma.sync with f32 sums, of its steps' first and second halves, which
//           are added; then the 16 splits are added in order.
//   lanes   a lane loads 8 neighbouring elements of a row, of tokens and weights alike. mma.sync
//           wants them spread over lanes; since both operands permute K alike, the sum is the same.
#pragma once

#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/moe/route_kernels.h"

namespace koho::cuda {

/// The first step of split `split`.
__device__ __forceinline__ int split_k_begin(int hidden, int split) {
  return hidden / kRouteStep * split / kRouteSplitK;
}

/// A thread's place in the cluster kernels. CTA `rank` has split `rank` of H, warp w experts 16 w
/// to 16 w + 15, a lane two of these (`group` and `group` + 8) and 8 elements, `quad`, of each
/// step.
struct RoutePlace {
  int thread, threads, warp, lane, group, quad, rank;
};
__device__ __forceinline__ RoutePlace route_place() {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  return {.thread = thread,
          .threads = static_cast<int>(blockDim.x),
          .warp = thread / 32,
          .lane = lane,
          .group = lane / 4,
          .quad = lane % 4,
          .rank = static_cast<int>(cluster_rank())};
}

/// Where the 8 elements `quad` of an expert's weights begin in step `begin`. An absent expert reads
/// the last one's.
__device__ __forceinline__ const Bf16* weight_piece(const Route& p,
                                                    int begin,
                                                    int quad,
                                                    int expert) {
  return static_cast<const Bf16*>(p.weight) + static_cast<std::int64_t>(begin) * kRouteStep +
         quad * 8 + static_cast<std::int64_t>(min(expert, p.experts - 1)) * p.hidden;
}

/// Adds 16 experts times 8 tokens over one step.
__device__ __forceinline__ void multiply_tile(float (&sum)[2][4],
                                              const uint4& low,
                                              const uint4& high,
                                              uint4 tokens) {
  mma_bf16(sum[0], low.x, high.x, low.y, high.y, tokens.x, tokens.y);
  mma_bf16(sum[1], low.z, high.z, low.w, high.w, tokens.z, tokens.w);
}

/// Elements from one token row to the next in shared memory. An odd multiple of 64 bytes, so that
/// the 64 bytes of two rows fall into different banks.
inline int route_row_elements(int hidden) {
  const int steps = (hidden / kRouteStep + kRouteSplitK - 1) / kRouteSplitK;
  return (steps + (steps + 1) % 2) * kRouteStep;
}
inline std::size_t route_row_bytes(int hidden) {
  return static_cast<std::size_t>(route_row_elements(hidden)) * sizeof(Bf16);
}
/// Bytes of shared memory for `tokens` rows, and for the weights of steps beyond the `kept` ones,
/// which stay in registers.
inline std::size_t route_rows_bytes(int hidden, int tokens, int threads, int kept) {
  const int steps = (hidden / kRouteStep + kRouteSplitK - 1) / kRouteSplitK;
  return static_cast<std::size_t>(tokens) * route_row_bytes(hidden) +
         static_cast<std::size_t>(steps > kept ? steps - kept : 0) * 2 *
             static_cast<std::size_t>(threads) * 16;
}

/// Transposes a 4 x 4 matrix over four lanes that are 4 and 8 apart: element i of lane j becomes
/// element j of lane i.
__device__ __forceinline__ float4 transpose_lanes(float4 v) {
  const bool odd = (threadIdx.x & 4U) != 0;
  const float a = __shfl_xor_sync(0xFFFFFFFFU, odd ? v.x : v.y, 4);
  const float b = __shfl_xor_sync(0xFFFFFFFFU, odd ? v.z : v.w, 4);
  v = odd ? make_float4(a, v.y, b, v.w) : make_float4(v.x, a, v.z, b);
  const bool high = (threadIdx.x & 8U) != 0;
  const float c = __shfl_xor_sync(0xFFFFFFFFU, high ? v.x : v.z, 8);
  const float d = __shfl_xor_sync(0xFFFFFFFFU, high ? v.y : v.w, 8);
  return high ? make_float4(c, d, v.z, v.w) : make_float4(v.x, v.y, c, d);
}

/// Relative error about 2^-22, and 2^-24 |logit| more far below zero.
__device__ __forceinline__ float sigmoid(float logit) {
  return __fdividef(1.0F, 1.0F + exp2_approximate(-1.4426950408889634F * logit));
}
/// The score that decides the choice; NaN becomes the lowest.
__device__ __forceinline__ float selection_score(float score, float bias) {
  const float biased = score + bias;
  return isnan(biased) ? -INFINITY : biased;
}

/// The routing weight of a chosen expert; `sum` adds the scores of all chosen ones.
__device__ __forceinline__ float final_weight(const Route& p, float score, float sum) {
  return (p.normalize ? __fdividef(score, sum + 1e-20F) : score) * p.scale;
}

/// Writes a token's choice; lane `slot` holds the expert of that slot. All lanes of a warp call it.
__device__ __forceinline__ void write_top_k(const Route& p,
                                            std::int64_t token,
                                            const float* scores,
                                            int expert) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float score = lane < p.top_k ? scores[expert] : 0.0F;
  float sum = 0.0F;
  for (int slot = 0; slot < p.top_k; ++slot) sum += __shfl_sync(0xFFFFFFFFU, score, slot);
  if (lane >= p.top_k) return;
  p.ids[token * p.top_k + lane] = expert;
  p.weights[token * p.top_k + lane] = final_weight(p, score, sum);
}

/// One warp chooses a token's experts in A rounds, each the warp's maximum of the selection scores;
/// equal scores go to the lower id. Lane l keeps experts l, l + 32, … in registers, `kEach` of
/// them.
template <int kEach>
__device__ void select_top_k(const Route& p,
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
  write_top_k(p, token, scores, my_expert);
}

}  // namespace koho::cuda
