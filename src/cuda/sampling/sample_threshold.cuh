// SPDX-License-Identifier: Apache-2.0
// Where a threshold (top_k, top_p) lies among a row's logits, without a sort: logits are binned by
// their distance from the row's largest, and the bin that reaches the target is searched exactly.
// All sums are of integers that depend on a logit and on the row's largest alone; so every kernel
// keeps the same tokens, however it divides the row and in whatever order it adds. A probability is
// right to 2^-14.8 of itself.
#pragma once

#include "cuda/sampling/sample.cuh"

namespace koho::cuda {

constexpr int kBins = 2048;
constexpr int kBinsEach = kBins / kSampleThreads;  // of a thread
constexpr float kBinsPerNat = 64.0F;
constexpr float kMagic = 12582912;  // 3 * 2^22: adding it rounds to an integer, found in the bits
constexpr std::uint32_t kMagicBits = 0x4B400000U;
constexpr float kWeightOne = 16384.0F;      // of a value at the middle of its bin
constexpr float kScaleOne = 4294967296.0F;  // 2^32, of the first bin
// A value weighs at most exp(1/128) of kWeightOne; one more for the rounding. Sums of a bin stay
// below 2^32, those of a row below 2^64.
constexpr std::uint64_t kWeightMost = 16384 + 130;
static_assert(kSampleTokensMax * kWeightMost < (std::uint64_t{1} << 32U));

/// The middle of the bin of a logit (after temperature), in units of a bin: bins are 1/64 wide and
/// the same in all rows.
__device__ __forceinline__ float bin_middle(float value) {
  return rintf(kBinsPerNat * value);
}

/// kWeightOne * exp(rest / 64), where `rest` is 64 * value less its bin's middle: three terms of
/// the series, right to 2^-23, rounded to an integer.
__device__ __forceinline__ std::uint32_t bin_weight(float rest) {
  constexpr float kLinear = kWeightOne / kBinsPerNat;
  constexpr float kSquare = kWeightOne / (2.0F * kBinsPerNat * kBinsPerNat);
  return __float_as_uint(__fmaf_rn(rest, __fmaf_rn(rest, kSquare, kLinear), kWeightOne + kMagic)) -
         kMagicBits;
}

/// The factor of a bin's weights, `below` bins below the row's largest value: exp(-below / 64),
/// right to 2^-18 and to 2^-33 of the largest; 0 from 1,500 bins on.
__device__ __forceinline__ std::uint64_t bin_scale(int below) {
  constexpr float kStep = -kLog2E / kBinsPerNat;
  return __float2ull_rn(kScaleOne * exp2_approximate(__fmul_rn(static_cast<float>(below), kStep)));
}

/// Which bin a value lies in: 0 for the row's largest, rising as values fall, the last for all
/// others.
struct Binning {
  float top;         // bin_middle(largest)
  bool probability;  // weigh values by probability (top_p), or count them (top_k)

  __device__ __forceinline__ int bin(float value) const {
    return static_cast<int>(fminf(top - bin_middle(value), kBins - 1.0F));
  }
  __device__ __forceinline__ std::uint32_t weight(float value) const {
    // NOTE: the clamp also serves infinity, whose rest is NaN.
    const float rest = kBinsPerNat * value - bin_middle(value);
    return probability ? bin_weight(fminf(fmaxf(rest, -0.5F), 0.5F)) : 1U;
  }
  __device__ __forceinline__ std::uint64_t scale(int bin) const {
    return probability ? bin_scale(bin) : 1U;
  }
};

/// The weight to be reached: top_p of the weight of `all`.
__device__ __forceinline__ std::uint64_t top_p_target(float top_p, std::uint64_t all) {
  const double share = static_cast<double>(top_p) * __ull2double_rn(all);
  return min(max(__double2ull_ru(share), 1ULL), static_cast<unsigned long long>(all));
}

/// What find_bin() and threshold_of_list() need in shared memory.
struct Selection {
  std::uint32_t bins[kBins];
  std::uint64_t sums[kSampleWarps];
  std::uint64_t target;
  std::uint64_t above;  // the weight of the bins above the chosen one
  int chosen;
  std::uint32_t threshold;  // ordered

  __device__ __forceinline__ void clear() {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) bins[i * kSampleThreads + threadIdx.x] = 0;
    if (threadIdx.x == 0) chosen = -1;
    __syncthreads();
  }
};

/// Finds the first bin at which `above` and the bins' weights so far reach the target, which
/// `target_of` makes of the weight of all bins. False if they do not. All threads; nobody has
/// touched `chosen` since clear().
template <typename Target, typename Scale>
__device__ bool find_bin(Selection& selection,
                         std::uint64_t above,
                         const Target& target_of,
                         const Scale& scale) {
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  std::uint64_t weights[kBinsEach];
  std::uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    const int bin = thread * kBinsEach + i;
    weights[i] = selection.bins[bin];
    if (weights[i] != 0) weights[i] *= scale(bin);
    sum += weights[i];
  }
  std::uint64_t before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const std::uint64_t other = __shfl_up_sync(0xFFFFFFFFU, before, offset);
    if (thread % 32 >= offset) before += other;
  }
  if (thread % 32 == 31) selection.sums[thread / 32] = before;
  __syncthreads();
  std::uint64_t all = 0;
  std::uint64_t warps_before = 0;
  for (int warp = 0; warp < kSampleWarps; ++warp) {
    if (warp == thread / 32) warps_before = all;
    all += selection.sums[warp];
  }
  const std::uint64_t target = target_of(all);
  if (thread == 0) selection.target = target;
  before = above + warps_before + (before - sum);
  if (before < target && before + sum >= target) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) {
      if (!found && before + weights[i] >= target) {
        found = true;
        selection.chosen = thread * kBinsEach + i;
        selection.above = before;
      }
      before += weights[i];
    }
  }
  __syncthreads();
  return selection.chosen >= 0;
}

/// The threshold within the chosen bin, whose `count` values and weights are listed: the largest
/// value such that the weight above the bin and that of all values not below it reach the target.
/// All threads.
__device__ __forceinline__ float threshold_of_list(Selection& selection,
                                                   const float* values,
                                                   const std::uint32_t* weights,
                                                   int count,
                                                   std::uint64_t scale) {
  if (threadIdx.x == 0) selection.threshold = ordered(kMaskedLogit);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    const float value = values[i];
    std::uint32_t weight = 0;
#pragma unroll 8
    for (int j = 0; j < count; ++j) weight += values[j] >= value ? weights[j] : 0;
    if (selection.above + weight * scale >= selection.target)
      atomicMax(&selection.threshold, ordered(value));
  }
  __syncthreads();
  return unordered(selection.threshold);
}

}  // namespace koho::cuda
