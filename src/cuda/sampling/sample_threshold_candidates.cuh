// SPDX-License-Identifier: Apache-2.0
// Rows with top_k or min_p in sample_threshold_stream.cu: one pass keeps the candidates that the
// row's largest logits so far do not rule out, and the exact thresholds are then found among these.
#pragma once

#include "cuda/sampling/sample_threshold_stream.cuh"

namespace koho::cuda::sample_stream {

/// Selects candidates of top_k and min_p. `held` are this thread's, after temperature; kMaskedLogit
/// where it has none.
struct CandidateSelector {
  const SamplingRow& row;
  const LogitsProcessor& processor;
  Shared& shared;
  int top_k;  // 0 = none
  float largest = kMaskedLogit;
  float bound = kMaskedLogit;  // tokens with a lower raw logit are no candidates

  /// Raises the bound to what the candidates in registers allow, and puts those that reach it back
  /// in shared memory. All threads.
  __device__ void raise(const float (&held)[kEach], const int (&ids)[kEach]) {
    float mine = kMaskedLogit;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine = fmaxf(mine, held[i]);
    largest = fmaxf(largest, block_max(mine, shared));
    float least = kMaskedLogit;  // after temperature
    if (row.min_p > 0.0F) least = largest + logf(row.min_p);
    if (top_k > 0) {
      Selection& selection = shared.selection;
      selection.clear();
      const Binning binning{bin_middle(largest), false};
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (held[i] != kMaskedLogit) atomicAdd(&selection.bins[binning.bin(held[i])], 1U);
      // The last bin has no lower bound.
      if (find_bin(
              selection, 0, [&](std::uint64_t) { return static_cast<std::uint64_t>(top_k); },
              [](int) { return std::uint64_t{1}; }) &&
          selection.chosen < kBins - 1)
        least =
            fmaxf(least, (binning.top - static_cast<float>(selection.chosen) - 0.5F) / kBinsPerNat);
    }
    // NOTE: lower than exact by more than the roundings of apply_temperature(), of the bins and of
    // this line.
    if (least != kMaskedLogit) {
      const float temperature = row.temperature;
      bound = least * temperature - (fabsf(least) + fabsf(largest) + 1.0F) * temperature * 0x1p-18F;
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (held[i] != kMaskedLogit && held[i] * row.temperature >= bound) put(held[i], ids[i]);
    __syncthreads();
  }

  __device__ __forceinline__ void put(float value, int id) {
    const int place = atomicAdd(&shared.count, 1);
    if (place >= kCandidates) return;
    shared.candidates.values[place] = value;
    shared.candidates.ids[place] = id;
  }

  __device__ __forceinline__ void offer(const float4& raw, int id) {
    const auto one = [&](float value, int at) {
      if (value >= bound && value != kMaskedLogit) put(processor.apply_temperature(value), at);
    };
    one(raw.x, id);
    one(raw.y, id + 1);
    one(raw.z, id + 2);
    one(raw.w, id + 3);
  }

  /// The thresholds of the row, exactly, among `count` candidates. False if a list does not hold
  /// what it would have to. All threads.
  __device__ bool find_threshold(int count, float& threshold) {
    Selection& selection = shared.selection;
    threshold = row.min_p > 0.0F ? largest + logf(row.min_p) : kMaskedLogit;
    for (int round = 0; round < 2; ++round) {
      const bool probability = round == 1;
      if (probability ? row.top_p >= 1.0F : top_k == 0) continue;
      const Binning binning{bin_middle(largest), probability};
      selection.clear();
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
        const float value = shared.candidates.values[i];
        if (value >= threshold)
          atomicAdd(&selection.bins[binning.bin(value)], binning.weight(value));
      }
      const auto target = [&](std::uint64_t all) {
        return probability ? top_p_target(row.top_p, all) : static_cast<std::uint64_t>(top_k);
      };
      if (!find_bin(selection, 0, target, [&](int bin) { return binning.scale(bin); })) continue;
      // The bin's values, in the memory of the bins.
      const int bin = selection.chosen;
      auto* list = reinterpret_cast<float*>(selection.bins);
      if (threadIdx.x == 0) shared.listed = 0;
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
        const float value = shared.candidates.values[i];
        if (!(value >= threshold) || binning.bin(value) != bin) continue;
        const int at = atomicAdd(&shared.listed, 1);
        if (at >= kListMax) continue;
        list[at] = value;
        shared.weights[at] = binning.weight(value);
      }
      __syncthreads();
      const int listed = shared.listed;
      if (listed > kListMax) return false;
      threshold = fmaxf(threshold, threshold_of_list(selection, list, shared.weights, listed,
                                                     binning.scale(bin)));
    }
    return true;
  }
};

/// Draws among candidates that are not below the threshold.
__device__ __forceinline__ void draw_listed(
    const SamplingRow& row, const Shared& shared, int count, float threshold, Best& best) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    const float value = shared.candidates.values[i];
    if (value < threshold) continue;
    const int id = shared.candidates.ids[i];
    const float noise = race_noise(id, static_cast<std::uint64_t>(row.output_position), row.seed);
    best.offer(value + noise, id);
  }
}

/// top_k and min_p, with or without top_p. The id, -1, or kSampleDeferred. All threads.
template <bool kPlain>
__device__ int sample_candidates(const SamplingRow& row,
                                 const Row& tokens,
                                 const LogitsProcessor& processor,
                                 Shared& shared) {
  CandidateSelector selector{row, processor, shared,
                             row.top_k > 0 && row.top_k < tokens.tokens ? row.top_k : 0};
  [[maybe_unused]] const bool raises = !kPlain && processor.raises();
  bool bad = false;
  {
    float held[kEach];
    int ids[kEach];
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i) {
      const int id = (i * kSampleThreads + static_cast<int>(threadIdx.x)) * 4;
      float4 four = tokens.load(id);
      if constexpr (!kPlain) {
        bad |= isnan(max_or_nan(four));
        if (id < tokens.tokens) {
          four = processor.changed(four, id, processor.vector_counted(id));
          bad |= isnan(max_or_nan(four));
          if (processor.mask != nullptr) four = processor.masked(four, id);
        }
      }
      const float raw[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        bad |= isnan(raw[j]);
        held[i * 4 + j] =
            raw[j] == kMaskedLogit ? kMaskedLogit : processor.apply_temperature(raw[j]);
        ids[i * 4 + j] = id + j;
      }
    }
    selector.raise(held, ids);
  }
  for (int begin = kFirst; begin < tokens.tokens; begin *= kGrowth) {
    const int end = min(begin * kGrowth, tokens.tokens);
    constexpr int kPrefetch = kPlain ? 8 : 4;
    for (int id = begin + static_cast<int>(threadIdx.x) * 4; id < end; id += kPrefetch * kStep) {
      float4 four[kPrefetch];
      prefetch_tokens(four, tokens, id, end);
      [[maybe_unused]] std::uint32_t counted[kPrefetch];
      if constexpr (!kPlain) {
#pragma unroll
        for (int i = 0; i < kPrefetch; ++i)
          counted[i] =
              raises && id + i * kStep < end ? processor.vector_counted(id + i * kStep) : 0U;
      }
#pragma unroll
      for (int i = 0; i < kPrefetch; ++i) {
        const int at = id + i * kStep;
        float most = max_or_nan(four[i]);
        if constexpr (!kPlain) {
          if (at >= end) break;
          bad |= isnan(most);
          if (most < selector.bound && counted[i] == 0 && !processor.vector_has_bias(at)) continue;
          four[i] =
              processor.changed(four[i], at, raises ? counted[i] : processor.vector_counted(at));
          most = max_or_nan(four[i]);
        }
        if (most < selector.bound || most == kMaskedLogit) continue;
        bad |= isnan(most);
        if constexpr (!kPlain)
          if (processor.mask != nullptr) four[i] = processor.masked(four[i], at);
        selector.offer(four[i], at);
      }
    }
    __syncthreads();
    if (shared.count > kCandidates) return kSampleDeferred;
    float held[kEach];
    int ids[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kSampleThreads + static_cast<int>(threadIdx.x);
      held[i] = at < shared.count ? shared.candidates.values[at] : kMaskedLogit;
      ids[i] = at < shared.count ? shared.candidates.ids[at] : 0;
    }
    selector.raise(held, ids);
  }
  if (__syncthreads_or(static_cast<int>(bad)) != 0 || selector.largest == kMaskedLogit) return -1;
  if (selector.largest == INFINITY) return kSampleDeferred;  // no bound is right
  const int count = shared.count;
  float threshold;
  if (!selector.find_threshold(count, threshold)) return kSampleDeferred;
  Best best;
  draw_listed(row, shared, count, threshold, best);
  return block_best(best, shared.best).id;
}

}  // namespace koho::cuda::sample_stream
