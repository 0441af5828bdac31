// SPDX-License-Identifier: Apache-2.0
// What the passes of sample_threshold_stream.cu share: shared memory, and how a row is read.
#pragma once

#include "cuda/sampling/sample_logits_processor.cuh"
#include "cuda/sampling/sample_threshold.cuh"

namespace koho::cuda::sample_stream {

constexpr int kEach = 8;  // candidates a thread holds in registers
constexpr int kCandidates = kEach * kSampleThreads;
constexpr int kFirst = kCandidates;  // tokens of the first segment
constexpr int kGrowth = 3;
constexpr int kStep = kSampleThreads * 4;  // tokens that all threads load at once
constexpr int kListMax = 1024;
constexpr int kTopMax = 512;           // the largest top_k taken
constexpr float kMarginBins = 512.0F;  // from the largest so far up to the reference
// The last 32 bins lie 1,500 bins and more below the largest and weigh nothing.
static_assert(kBins - 32 - static_cast<int>(kMarginBins) >= 1500);
constexpr int kStages = 2;
constexpr int kOverflowMax = 2048;

struct Candidates {
  float values[kCandidates];  // after temperature
  int ids[kCandidates];
};
constexpr int kChangesMax = kStages * kSampleWarps * kBlockTokens;
struct Blocks {
  union {
    float ring[kStages][kSampleWarps][kBlockTokens];
    int changes[kChangesMax];  // ids of tokens whose logits all threads look up together
  };
  float values[kOverflowMax];  // after temperature: above the reference; then those of one bin
  std::uint16_t most[kSampleTokensMax / kGroupTokens];  // upper_bits() of groups
};
struct Shared {
  union {
    Candidates candidates;
    Blocks blocks;
  };
  std::uint32_t weights[kListMax];
  std::uint32_t biased[kSampleTokensMax / kBiasedTokens];
  Selection selection;
  BestScratch best;
  float reduce_float[kSampleWarps];
  int count;   // candidates, or values of the bin
  int listed;  // of the candidates, in the chosen bin; or of Blocks::changes
  std::uint32_t leading;
};
static_assert(kListMax <= kOverflowMax && sizeof(Shared) <= 113 * 1024);  // two CTAs an SM

/// An upper bound of `most` in 16 bits; 0 for -infinity.
__device__ __forceinline__ std::uint16_t upper_bits(float most) {
  return most == kMaskedLogit ? 0 : static_cast<std::uint16_t>((ordered(most) + 0xFFFFU) >> 16U);
}
__device__ __forceinline__ float upper_bound(std::uint16_t bits) {
  return bits == 0 ? kMaskedLogit : unordered(static_cast<std::uint32_t>(bits) << 16U);
}

__device__ __forceinline__ float block_max(float value, Shared& shared) {
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.reduce_float[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared.reduce_float[0];
#pragma unroll
  for (int warp = 1; warp < kSampleWarps; ++warp) value = fmaxf(value, shared.reduce_float[warp]);
  return value;
}

/// A row's tokens, read in segments.
struct Row {
  const float* logits;
  int tokens;

  __device__ __forceinline__ float4 load(int id) const {
    if (id + 4 <= tokens) return __ldg(reinterpret_cast<const float4*>(logits + id));
    const auto one = [&](int i) { return id + i < tokens ? logits[id + i] : kMaskedLogit; };
    return make_float4(one(0), one(1), one(2), one(3));
  }
};

/// Four tokens from `id` on, and from every kStep behind, as far as `end`.
template <int kPrefetch>
__device__ __forceinline__ void prefetch_tokens(float4 (&four)[kPrefetch],
                                                const Row& tokens,
                                                int id,
                                                int end) {
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i)
    four[i] = id + i * kStep < end
                  ? tokens.load(id + i * kStep)
                  : make_float4(kMaskedLogit, kMaskedLogit, kMaskedLogit, kMaskedLogit);
}

/// Calls `use(id, raw)` for this thread's tokens of a row, -infinity behind its end.
template <typename Use>
__device__ __forceinline__ void each_token(const Row& tokens, const Use& use) {
  constexpr int kPrefetch = 8;
  for (int at = static_cast<int>(threadIdx.x) * 4; at < tokens.tokens; at += kPrefetch * kStep) {
    float4 four[kPrefetch];
    prefetch_tokens(four, tokens, at, tokens.tokens);
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int id = at + i * kStep;
      use(id, four[i].x);
      use(id + 1, four[i].y);
      use(id + 2, four[i].z);
      use(id + 3, four[i].w);
    }
  }
}

}  // namespace koho::cuda::sample_stream
