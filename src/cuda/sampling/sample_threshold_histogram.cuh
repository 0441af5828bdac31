// SPDX-License-Identifier: Apache-2.0
// The pass over a row with top_p alone in sample_threshold_stream.cu: it adds each token's
// probability to the bins of sample_threshold.cuh and keeps the largest logit of every group.
#pragma once

#include "cuda/sampling/sample_threshold_stream.cuh"

namespace koho::cuda::sample_stream {

/// Adds values (after temperature) to bins whose first is the reference's. Binning's arithmetic in
/// fewer steps, for |64 * value| below 2^22.
struct Histogram {
  float top;              // of the reference, a bin's middle
  std::uint32_t bins_at;  // in shared memory

  __device__ __forceinline__ bool exceeds(float value) const { return kBinsPerNat * value > top; }
  /// Whether a value, and so all below it, lies in the last bin and weighs nothing.
  __device__ __forceinline__ bool is_beyond(float value) const {
    return kBinsPerNat * value < top - (kBins - 1.0F);
  }
  /// The bin of tokens that weigh nothing: the last one. In rows that change their logits, where a
  /// mask may take most tokens, each lane has one of the last 32: atomics on one word would
  /// serialise.
  template <bool kPlain>
  __device__ __forceinline__ float lowest() const {
    const float last = top - (kBins - 1.0F);
    return kPlain ? last : last + static_cast<float>(threadIdx.x % 32);
  }
  __device__ __forceinline__ void add(float value, float lowest) const {
    const float scaled = fmaxf(kBinsPerNat * value, lowest);
    const float rounded = scaled + kMagic;
    const std::uint32_t bin = __float_as_uint(top + kMagic) - __float_as_uint(rounded);
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(bins_at + bin * 4),
                 "r"(bin_weight(scaled - (rounded - kMagic)))
                 : "memory");
  }
};

/// value / temperature, rounded as the division rounds it (Markstein: the reciprocal is rounded
/// correctly, and the first correction brings the quotient next to the right one). NaN for
/// infinities.
struct Quotient {
  float temperature;
  float reciprocal;

  __device__ __forceinline__ float operator()(float value) const {
    float result = __fmul_rn(value, reciprocal);
    result = __fmaf_rn(__fmaf_rn(-result, temperature, value), reciprocal, result);
    return __fmaf_rn(__fmaf_rn(-result, temperature, value), reciprocal, result);
  }
};

/// Starts copying this lane's tokens of a block to shared memory.
__device__ __forceinline__ void fetch_block(const Row& tokens, float* to, int block) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kGroupVectors; ++i) {
    const int at = i * kVectorStep + lane * 4;
    if (block + at < tokens.tokens)
      cp_async_16(shared_address(to + at), tokens.logits + block + at,
                  static_cast<std::uint32_t>(min(tokens.tokens - block - at, 4)) * 4);
  }
  cp_async_commit_group();
}
/// Reads this lane's group of it, -infinity behind the row's end. Returns the largest; NaN if any
/// is.
__device__ __forceinline__ float read_group(const Row& tokens,
                                            const float* block_at,
                                            int block,
                                            float (&values)[kGroupTokens]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float most = kMaskedLogit;
#pragma unroll
  for (int i = 0; i < kGroupVectors; ++i) {
    const int at = i * kVectorStep + lane * 4;
    float4 four = make_float4(kMaskedLogit, kMaskedLogit, kMaskedLogit, kMaskedLogit);
    if (block + at < tokens.tokens) four = *reinterpret_cast<const float4*>(block_at + at);
    if (block + at + 4 > tokens.tokens) {
      if (block + at + 1 >= tokens.tokens) four.y = kMaskedLogit;
      if (block + at + 2 >= tokens.tokens) four.z = kMaskedLogit;
      four.w = kMaskedLogit;
    }
    most = max_or_nan(most, max_or_nan(four));
    values[i * 4] = four.x;
    values[i * 4 + 1] = four.y;
    values[i * 4 + 2] = four.z;
    values[i * 4 + 3] = four.w;
  }
  return most;
}

/// Applies biases and penalties to a warp's blocks, in order. It has prefetched which tokens of the
/// next block have counts, the first such count, and which tokens of the block after it.
struct Changer {
  const Row& tokens;
  const LogitsProcessor& processor;
  std::uint32_t counted = 0;
  std::uint32_t counted_behind = 0;
  std::int32_t count = 0;

  __device__ __forceinline__ void begin(int block) {
    counted = counted_of(block);
    counted_behind = counted_of(block + kBlocksStep);
    count = processor.first_count(block, counted);
  }
  __device__ __forceinline__ std::uint32_t counted_of(int block) const {
    return block < tokens.tokens ? processor.counted(block) : 0U;
  }
  /// This lane's tokens of the block at `here`.
  __device__ __forceinline__ void change(float* here, int block) {
    if (block >= tokens.tokens) return;
    processor.change(here, block, counted, count);
    counted = counted_behind;
    counted_behind = counted_of(block + 2 * kBlocksStep);
    count = processor.first_count(block + kBlocksStep, counted);
  }
};

/// The token mask of a block of 512 tokens: a word each in the first 16 lanes.
struct BlockMask {
  const LogitsProcessor& processor;
  int tokens;
  std::uint32_t word = ~0U;

  __device__ __forceinline__ void read(int block) {
    const int at = block + static_cast<int>(threadIdx.x) % 32 * 32;
    if (processor.mask != nullptr && threadIdx.x % 32 < kBlockTokens / 32 && at < tokens)
      word = static_cast<std::uint32_t>(__ldg(processor.mask + at / 32));
  }
  /// Masks this lane's group, whose largest is `most`. Returns the largest of what is left; sets
  /// `bad` if it was NaN. All threads of a warp.
  __device__ __forceinline__ float apply(float (&values)[kGroupTokens],
                                         float most,
                                         bool& bad) const {
    if (processor.mask == nullptr || __all_sync(0xFFFFFFFFU, word == ~0U)) return most;
    bad |= isnan(most);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    most = kMaskedLogit;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) {
      const std::uint32_t allowed =
          __shfl_sync(0xFFFFFFFFU, word, i * (kVectorStep / 32) + lane / 8) >> (lane % 8 * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& value = values[i * 4 + j];
        if ((allowed >> j & 1U) == 0) value = kMaskedLogit;
        most = fmaxf(most, value);
      }
    }
    return most;
  }
};

/// One token's logit, as the row's biases, penalties and mask leave it.
template <bool kPlain>
__device__ __forceinline__ float logit_of(const Row& tokens,
                                          const LogitsProcessor& processor,
                                          int id) {
  return kPlain ? tokens.logits[id] : processor.logit(tokens.logits, id);
}

/// Moves all bins down by `shift`; what falls off the end weighs nothing. All threads.
__device__ __forceinline__ void shift_bins(Selection& selection, const int& shift) {
  std::uint32_t moved[kBinsEach];
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    const int bin = i * kSampleThreads + static_cast<int>(threadIdx.x) - shift;
    moved[i] = bin >= 0 ? selection.bins[bin] : 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) selection.bins[i * kSampleThreads + threadIdx.x] = moved[i];
  __syncthreads();
}

/// Adds all tokens to the bins, and finds the largest of each group and of the row. Returns 0, -1
/// if no token is allowed, or kSampleDeferred. All threads.
template <bool kPlain>
__device__ int add_tokens(const Row& tokens,
                          const LogitsProcessor& processor,
                          Shared& shared,
                          Histogram& histogram,
                          float& largest) {
  Selection& selection = shared.selection;
  Blocks& blocks = shared.blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) shared.count = 0;
  selection.clear();
  const bool divides = processor.temperature != 1.0F;
  const Quotient quotient{processor.temperature, 1.0F / processor.temperature};
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage)
    fetch_block(tokens, blocks.ring[stage][warp], warp * kBlockTokens + stage * kBlocksStep);
  bool listing = true;  // no reference yet: nothing but -infinity so far
  bool bad = false;
  float values[kGroupTokens];
  [[maybe_unused]] Changer changer{tokens, processor};
  [[maybe_unused]] BlockMask mask{processor, tokens.tokens};
  if constexpr (!kPlain) {
    changer.begin(warp * kBlockTokens);
    mask.read(warp * kBlockTokens);
  }
  cp_async_wait_group<kStages - 1>();
  if constexpr (!kPlain) changer.change(blocks.ring[0][warp], warp * kBlockTokens);
  largest = read_group(tokens, blocks.ring[0][warp], warp * kBlockTokens, values);
  if constexpr (!kPlain) largest = mask.apply(values, largest, bad);
  if (isnan(largest)) largest = kMaskedLogit;  // the loop finds it again
  /// Sets a reference above what was read. False if it is beyond all bins. All threads.
  const auto refer = [&](float& top) {
    top = bin_middle(processor.apply_temperature(block_max(largest, shared))) + kMarginBins;
    return fabsf(top) < 0x1p21F;
  };
  if (refer(histogram.top))
    listing = false;
  else if (histogram.top > 0.0F)
    return kSampleDeferred;
  int stage = 0;
  for (int begin = 0; begin < tokens.tokens;) {
    const int end = min(begin == 0 ? kBlocksStep : begin * kGrowth, tokens.tokens);
    const float lowest = histogram.lowest<kPlain>();
#pragma unroll 1
    for (int block = begin + warp * kBlockTokens; block < end; block += kBlocksStep) {
      cp_async_wait_group<kStages - 1>();
      float* here = blocks.ring[stage][warp];
      if constexpr (!kPlain)
        if (block >= kBlocksStep) changer.change(here, block);  // the first one is changed
      float most = read_group(tokens, here, block, values);
      fetch_block(tokens, here, block + kStages * kBlocksStep);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if constexpr (!kPlain) {
        most = mask.apply(values, most, bad);
        mask.read(block + kBlocksStep);
      }
      blocks.most[race_group(block + lane * 4)] = upper_bits(most);
      if (!(most > kMaskedLogit)) {  // NOTE: a NaN must not hide what exceeds the reference
        bad |= isnan(most);
        continue;
      }
      largest = fmaxf(largest, most);
      const float value = processor.apply_temperature(most);
      if (!listing && !histogram.exceeds(value)) {
        if (histogram.is_beyond(value)) continue;
        if (divides) {
#pragma unroll
          for (int j = 0; j < kGroupTokens; ++j) histogram.add(quotient(values[j]), lowest);
        } else {
#pragma unroll
          for (int j = 0; j < kGroupTokens; ++j) histogram.add(values[j], lowest);
        }
        continue;
      }
#pragma unroll 1
      for (int j = 0; j < kGroupTokens; ++j) {
        const int id = block + j / 4 * kVectorStep + lane * 4 + j % 4;
        const float value =
            id < tokens.tokens
                ? processor.apply_temperature(logit_of<kPlain>(tokens, processor, id))
                : kMaskedLogit;
        if (value == kMaskedLogit) continue;
        if (listing || histogram.exceeds(value)) {
          const int at = atomicAdd(&shared.count, 1);
          if (at < kOverflowMax) blocks.values[at] = value;
        } else {
          histogram.add(value, lowest);
        }
      }
    }
    begin = end;
    // The bins are shifted to a higher reference; then the waiting values are added.
    __syncthreads();
    const int waiting = shared.count;
    __syncthreads();  // NOTE: whoever goes on at once may add to it
    if (waiting > kOverflowMax) return kSampleDeferred;
    if (waiting == 0) continue;
    float top;
    if (!refer(top)) return kSampleDeferred;
    const int shift = listing ? 0 : static_cast<int>(fminf(top - histogram.top, float{kBins}));
    histogram.top = top;
    listing = false;
    if (shift > 0) {
      shift_bins(selection, shift);
    }
    for (int i = static_cast<int>(threadIdx.x); i < waiting; i += kSampleThreads)
      histogram.add(blocks.values[i], histogram.lowest<kPlain>());
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
  }
  cp_async_wait_group<0>();
  largest = block_max(largest, shared);
  if (__syncthreads_or(static_cast<int>(bad || listing)) != 0) return -1;
  return largest == INFINITY ? kSampleDeferred : 0;
}

}  // namespace koho::cuda::sample_stream
