// SPDX-License-Identifier: Apache-2.0
// Top-k by counting: a thread per expert finds its rank as the number of larger keys. First each
// warp ranks its own 32 experts, then the best eight of every warp are ranked among themselves,
// with four threads for each. For A <= 8; a larger A uses select_top_k() of route.cuh.
//
// NOTE: every thread runs this code once, at the end of the kernel's chain, so its cost is its
// instructions. Ties, absent experts and equal keys are arranged in memory so that they need none.
#pragma once

#include "cuda/moe/route.cuh"

namespace koho::cuda {

constexpr int kCountingTopKMax = 8;                 // A at most
constexpr int kLists = kFastExperts / 32;           // warps that choose; each has a list
constexpr int kListed = kLists * kCountingTopKMax;  // candidates of the second round
constexpr int kListedLanes = 4;                     // lanes that rank one candidate together
static_assert(kListed % (4 * kListedLanes) == 0 && 32 == kCountingTopKMax * kListedLanes);

/// Shared memory of one token's choice. Entries without an expert are zero.
struct CountingTopK {
  alignas(16) std::uint32_t keys[kLists][2 * 32];  // twice, see keys_before()
  alignas(16) std::uint32_t listed[2 * kListed];   // the keys of each warp's first eight, twice
  int experts[kListed];
  float scores[kListed];
  alignas(16) float chosen[kCountingTopKMax];  // scores
};

/// Adds 1 to `count` if `key` > `than`: one integer and one float instruction, so that both pipes
/// work.
__device__ __forceinline__ void count_larger(float& count, std::uint32_t key, std::uint32_t than) {
  asm("{\n\t.reg .pred p;\n\tsetp.gt.u32 p, %1, %2;\n\t@p add.f32 %0, %0, 0f3F800000;\n\t}"
      : "+f"(count)
      : "r"(key), "r"(than));
}
/// Counts which of 4 * kFours keys from `from` on precede `mine`: the larger ones, and the equal
/// ones among the first `equal`.
///
/// Ties go to the lower index without a comparison of indices: the array stands in memory twice,
/// the second copy with each key larger by one. Thread `place` reads from its own group of four on
/// into the second copy. There it meets the keys of lower groups as key + 1, so an equal one counts
/// as larger; within its own four `equal` = place % 4 decides.
template <int kFours>
__device__ __forceinline__ int keys_before(const std::uint32_t* from,
                                           std::uint32_t mine,
                                           int equal) {
  const auto* fours = reinterpret_cast<const uint4*>(from);
  float count[4] = {8388608.0F};  // 2^23: the sum's low bits are a whole number
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const uint4 four = fours[i];
    count_larger(count[0], four.x, mine);
    count_larger(count[1], four.y, mine);
    count_larger(count[2], four.z, mine);
    count_larger(count[3], four.w, mine);
  }
  const uint4 own = fours[0];
  if (equal > 0 && own.x == mine) count[0] += 1.0F;
  if (equal > 1 && own.y == mine) count[1] += 1.0F;
  if (equal > 2 && own.z == mine) count[2] += 1.0F;
  return static_cast<int>(__float_as_uint((count[0] + count[1]) + (count[2] + count[3])) & 0xFFU);
}

/// One thread of the warps that choose for a token. It has expert 32 * list + lane.
struct TopKThread {
  int list;  // number of its warp among them
  int lane;
  int barrier;  // the named barrier of these warps
  int threads;  // how many arrive there
  float bias;   // of its expert; NaN for an absent one, which so comes last
};
__device__ __forceinline__ float bias_of(const Route& p, int expert) {
  return expert < p.experts ? p.bias[expert] : __uint_as_float(0x7FC00000U);
}

/// Chooses a token's experts and writes them to p.ids and p.weights from index `out` on.
__device__ __forceinline__ void top_k_by_counting(
    const Route& p, int out, float logit, CountingTopK& choice, const TopKThread& at) {
  const auto list = static_cast<unsigned>(at.list);
  const auto lane = static_cast<unsigned>(at.lane);
  const float score = sigmoid(logit);
  const std::uint32_t key = ordered(selection_score(score, at.bias));
  std::uint32_t* keys = choice.keys[list];
  keys[lane] = key;
  keys[32 + lane] = key + 1;
  __syncwarp();
  const int in_list = keys_before<8>(keys + (lane & ~3U), key, static_cast<int>(lane % 4));
  if (in_list < kCountingTopKMax) {
    const unsigned place = list * kCountingTopKMax + static_cast<unsigned>(in_list);
    choice.listed[place] = key;
    choice.listed[kListed + place] = key + 1;
    choice.experts[place] = static_cast<int>(list * 32 + lane);
    choice.scores[place] = score;
  }
  named_barrier_sync(at.barrier, at.threads);
  constexpr unsigned kEach = kListed / kListedLanes;
  const unsigned place = list * kCountingTopKMax + lane / kListedLanes;
  const unsigned list_lane = lane % kListedLanes;
  const std::uint32_t candidate = choice.listed[place];
  int before = keys_before<kEach / 4>(choice.listed + (place & ~3U) + list_lane * kEach, candidate,
                                      list_lane == 0 ? static_cast<int>(place % 4) : 0);
  before += __shfl_xor_sync(0xFFFFFFFFU, before, 1);
  before += __shfl_xor_sync(0xFFFFFFFFU, before, 2);
  const bool chosen = list_lane == 0 && before < p.top_k;
  const float mine = choice.scores[place];
  if (chosen) {
    choice.chosen[before] = mine;
    p.ids[out + before] = choice.experts[place];
  }
  named_barrier_sync(at.barrier, at.threads);
  if (!chosen) return;
  const float4 a = *reinterpret_cast<const float4*>(choice.chosen);
  const float4 b = *reinterpret_cast<const float4*>(choice.chosen + 4);
  const float sum = ((((((a.x + a.y) + a.z) + a.w) + b.x) + b.y) + b.z) + b.w;
  p.weights[out + before] = final_weight(p, mine, sum);
}

/// Adds the split-K sums of a token's logits in order and chooses its experts.
__device__ __forceinline__ void reduce_split_k_and_choose(
    const Route& p,
    int out,
    float (&partial)[kRouteSplitK][kFastExperts],
    CountingTopK& choice,
    const TopKThread& at) {
  const int expert = at.list * 32 + at.lane;
  float logit = 0.0F;
#pragma unroll
  for (int split = 0; split < kRouteSplitK; ++split) logit += partial[split][expert];
  if (p.top_k > kCountingTopKMax) [[unlikely]] {
    float* scores = partial[0];  // reused: each thread has read its own entries
    float* selection = partial[1];
    scores[expert] = sigmoid(logit);
    selection[expert] = selection_score(scores[expert], at.bias);
    named_barrier_sync(at.barrier, at.threads);
    if (at.list == 0) select_top_k<kLists>(p, out / p.top_k, scores, selection);
    return;
  }
  top_k_by_counting(p, out, logit, choice, at);
}

}  // namespace koho::cuda
