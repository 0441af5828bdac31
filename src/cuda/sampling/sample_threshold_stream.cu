// SPDX-License-Identifier: Apache-2.0
// Sampling of many rows with thresholds: a CTA a row, which streams it from memory and keeps next
// to nothing of it.
//
//   top_k    once: of every part of the row read so far the k-th largest is a lower bound of the
//            row's, so only what lies above it is kept as a candidate. The bound is raised after
//            each segment, and segments grow threefold: some 2k candidates each. The exact
//            threshold is then found among the candidates; min_p and top_p cut what top_k kept.
//   min_p    once, in the same way: the bound follows the largest so far.
//   top_p    once: its probability goes into bins by distance from a reference above the largest so
//            far (what exceeds it waits in a list; the bins are then shifted, which loses nothing),
//            and the largest of every group of the race is kept. The bin in which the threshold
//            lies gives a bound; among the groups that reach it, few can win with their earliest
//            times, and only those are read again. If a token of that bin wins, about once in 200
//            draws, the row is read again for the threshold itself.
//   changes  biases, penalties and masks as a token is read, in code of its own: what is only
//            lowered and lies below the bound already needs none; for top_p a lane changes its
//            group of a block in shared memory, whose bitmaps are read two blocks ahead, and masks it
//            in registers. Reading again, it lists what lies in the bin and what a change may bring
//            there, and looks these tokens' counts up side by side.
//   left     rows it does not take (log-probabilities, large top_k) or that do not fit its lists:
//            their id becomes kSampleDeferred, and the kernel behind (sample_threshold_cluster.cu) does them.
//   shared   112 KB: candidates or blocks of 512 tokens under way, bins, groups' largest
//   bytes    the logits once; under penalties bitmaps and counts besides
//
// Thresholds are those of the cut kernel to the bit, so a row's draw does not depend on how many
// rows there are: both use the integers of sample.cuh. Numbers: docs/kernels/README.md; what was
// tried: docs/kernels/sampling.md.
#include "cuda/device/launch.cuh"
#include "cuda/sampling/sample.cuh"

namespace koho::cuda {
namespace {

constexpr int kEach = 8;  // candidates a thread holds in registers
constexpr int kCandidates = kEach * kSampleThreads;
constexpr int kFirst = kCandidates;  // tokens of the first segment
constexpr int kGrowth = 3;
constexpr int kStep = kSampleThreads * 4;  // tokens that all threads load together
constexpr int kListMax = 1024;
constexpr int kTopMax = 512;           // the largest top_k taken
constexpr float kMarginBins = 512.0F;  // of the reference above the largest so far
// What is in the last 32 bins lies 1,500 bins and more below the largest and weighs nothing.
static_assert(kBins - 32 - static_cast<int>(kMarginBins) >= 1500);
constexpr int kStages = 2;
constexpr int kOverflowMax = 2048;

struct Candidates {
  float values[kCandidates];  // tempered
  int ids[kCandidates];
};
constexpr int kChangesMax = kStages * kSampleWarps * kBlockTokens;
struct Blocks {
  union {
    float ring[kStages][kSampleWarps][kBlockTokens];
    int changes[kChangesMax];  // ids of tokens whose logits are looked up side by side
  };
  float values[kOverflowMax];  // tempered: above the reference; then those of one bin
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

/// An upper bound in 16 bits, 0 of -infinity.
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

/// Whether a row is this kernel's.
__device__ __forceinline__ bool takes(const Sample& p, const RowView& view) {
  const SampleRow& row = view.row;
  const bool logprobs = row.logprobs >= 0 && (p.logprobs != nullptr || p.top_ids != nullptr);
  const bool fits = row.top_k <= kTopMax || row.top_k >= p.tokens;
  return view.random && !logprobs && fits &&
         reinterpret_cast<std::uintptr_t>(view.logits) % 16 == 0;
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

/// Candidates of top_k and min_p. `held` are this thread's, tempered, kMaskedLogit where it has none.
struct CandidateSelector {
  const SampleRow& row;
  const LogitsProcessor& processor;
  Shared& shared;
  int top_k;  // 0 = none
  float largest = kMaskedLogit;
  float bound = kMaskedLogit;  // tokens below are no candidates; of raw logits

  /// Raises the bound to what the candidates in registers allow; they go back to shared memory
  /// without those below it. All threads.
  __device__ void raise(const float (&held)[kEach], const int (&ids)[kEach]) {
    float mine = kMaskedLogit;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine = fmaxf(mine, held[i]);
    largest = fmaxf(largest, block_max(mine, shared));
    float least = kMaskedLogit;  // tempered
    if (row.min_p > 0.0F) least = largest + logf(row.min_p);
    if (top_k > 0) {
      Selection& selection = shared.selection;
      selection.clear();
      const Binning binning{bin_middle(largest), false};
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (held[i] != kMaskedLogit) atomicAdd(&selection.bins[binning.bin(held[i])], 1U);
      // The last bin has no lower border.
      if (find_bin(
              selection, 0, [&](std::uint64_t) { return static_cast<std::uint64_t>(top_k); },
              [](int) { return std::uint64_t{1}; }) &&
          selection.chosen < kBins - 1)
        least =
            fmaxf(least, (binning.top - static_cast<float>(selection.chosen) - 0.5F) / kBinsPerNat);
    }
    // NOTE: lower than exact by more than the roundings of apply_temperature(), of the bins and of this line.
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
      // The bin's values, in the place of the bins.
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

/// The best draw among listed tokens that are not below the threshold.
__device__ __forceinline__ void draw_listed(
    const SampleRow& row, const Shared& shared, int count, float threshold, Best& best) {
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
__device__ int sample_candidates(const SampleRow& row,
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

/// Adds tempered values to bins whose first is the reference's: Binning's arithmetic in fewer
/// steps, for |64 * value| below 2^22.
struct Histogram {
  float top;              // of the reference, a bin's middle
  std::uint32_t bins_at;  // in shared memory

  __device__ __forceinline__ bool exceeds(float value) const { return kBinsPerNat * value > top; }
  /// Whether a value, and so all below it, lies in the last bin and weighs nothing.
  __device__ __forceinline__ bool is_beyond(float value) const {
    return kBinsPerNat * value < top - (kBins - 1.0F);
  }
  /// Where tokens meet that weigh nothing: the last bin. Of rows that change their logits, which a
  /// mask may take most of, one of the last 32 for each lane: at one word they would wait for each
  /// other.
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

/// This lane's tokens of a block to shared memory.
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
/// This lane's group of it, -infinity behind the row's end. The largest; NaN if any is.
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

/// What changes a warp's blocks, in order: which tokens of the next one have counts, the first of
/// these counts, and which of the one behind.
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

/// The allowed ones of a block of 512 tokens, a word of the mask a lane of the first sixteen.
struct BlockMask {
  const LogitsProcessor& processor;
  int tokens;
  std::uint32_t word = ~0U;

  __device__ __forceinline__ void read(int block) {
    const int at = block + static_cast<int>(threadIdx.x) % 32 * 32;
    if (processor.mask != nullptr && threadIdx.x % 32 < kBlockTokens / 32 && at < tokens)
      word = static_cast<std::uint32_t>(__ldg(processor.mask + at / 32));
  }
  /// Takes what is not allowed out of this lane's group, whose largest is `most`. The largest then;
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

/// One token's logit, as the row changes it.
template <bool kPlain>
__device__ __forceinline__ float logit_of(const Row& tokens,
                                          const LogitsProcessor& processor,
                                          int id) {
  return kPlain ? tokens.logits[id] : processor.logit(tokens.logits, id);
}

/// Lists the tokens that a bias or a count may change. All threads; nobody reads the blocks under
/// way any more.
__device__ void list_changes(const Row& tokens, const LogitsProcessor& processor, Shared& shared) {
  constexpr int kPrefetch = 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
#pragma unroll 1
  for (int begin = warp * kBlockTokens; begin < tokens.tokens; begin += kPrefetch * kBlocksStep) {
    std::uint32_t members[kPrefetch];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int block = begin + i * kBlocksStep;
      members[i] = block < tokens.tokens ? processor.changes(block) : 0U;
    }
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) count += __popc(members[i]);
    int behind = count;  // the last of this lane's
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFU, behind, offset);
      if (lane >= offset) behind += other;
    }
    int place = lane == 31 && behind > 0 ? atomicAdd(&shared.listed, behind) : 0;
    place = __shfl_sync(0xFFFFFFFFU, place, 31) + behind - count;
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
#pragma unroll 1
      for (; members[i] != 0; members[i] &= members[i] - 1) {
        const int at = block_token(lane, __ffs(static_cast<int>(members[i])) - 1);
        if (place < kChangesMax) shared.blocks.changes[place] = begin + i * kBlocksStep + at;
        ++place;
      }
    }
  }
  __syncthreads();
}

/// Calls `use(place, raw, now)` for listed tokens that are allowed.
template <typename Use>
__device__ __forceinline__ void each_listed(const Row& tokens,
                                            const LogitsProcessor& processor,
                                            const Shared& shared,
                                            const Use& use) {
  constexpr int kPrefetch = 4;
  const int listed = shared.listed;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < listed; at += kPrefetch * kSampleThreads) {
    int ids[kPrefetch];
    float raw[kPrefetch];
    std::int32_t entries[kPrefetch];
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int place = at + i * kSampleThreads;
      ids[i] = place < listed ? shared.blocks.changes[place] : tokens.tokens;
      if (ids[i] >= tokens.tokens || !processor.allows(ids[i])) ids[i] = -1;
    }
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      raw[i] = ids[i] >= 0 ? tokens.logits[ids[i]] : kMaskedLogit;
      entries[i] = ids[i] >= 0 ? processor.entry(ids[i]) : 0;
    }
#pragma unroll 1
    for (int i = 0; i < kPrefetch; ++i) {
      if (ids[0] >= 0)
        use(at + i * kSampleThreads, raw[0], processor.changed(raw[0], ids[0], entries[0]));
#pragma unroll
      for (int j = 0; j + 1 < kPrefetch; ++j) {  // in turn: the code is there once
        ids[j] = ids[j + 1];
        raw[j] = raw[j + 1];
        entries[j] = entries[j + 1];
      }
    }
  }
}

/// The bins of all tokens, the largest of each group and of the row. 0, -1 if there is none, or
/// kSampleDeferred. All threads.
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
  bool listing = true;  // nothing but -infinity so far: no reference
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
  if (isnan(largest)) largest = kMaskedLogit;  // it is met again
  /// A reference above what was met. False if it is beyond all bins. All threads.
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
    // The bins are shifted to a higher reference, and what waited joins them.
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
      std::uint32_t moved[kBinsEach];
#pragma unroll
      for (int i = 0; i < kBinsEach; ++i) {
        const int bin = i * kSampleThreads + static_cast<int>(threadIdx.x) - shift;
        moved[i] = bin >= 0 ? selection.bins[bin] : 0;
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kBinsEach; ++i)
        selection.bins[i * kSampleThreads + threadIdx.x] = moved[i];
      __syncthreads();
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

/// What add_tokens() has found of a row.
template <bool kPlain>
struct TopP {
  const Row& tokens;
  const LogitsProcessor& processor;
  float middle;     // of the bin in which the threshold lies
  float bound;      // what this bin and those above it hold is not below; of raw logits
  float threshold;  // -infinity as long as the bin counts as a whole

  __device__ __forceinline__ float value(int id) const {
    if (id >= tokens.tokens) return kMaskedLogit;
    const float raw = logit_of<kPlain>(tokens, processor, id);
    if (!(raw >= bound)) return kMaskedLogit;
    const float tempered = processor.apply_temperature(raw);
    return bin_middle(tempered) >= middle && tempered >= threshold ? tempered : kMaskedLogit;
  }
};

/// Makes of groups' largest, where they reach the bound, what their tokens score at most; 0 of
/// others. All threads.
template <bool kPlain>
__device__ void bound_groups(const TopP<kPlain>& row, Shared& shared, const Drawing& drawing) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int block = static_cast<int>(threadIdx.x) / 32 * kBlockTokens; block < row.tokens.tokens;
       block += kBlocksStep) {
    const std::int32_t number = race_group(block + lane * 4);
    const float most = upper_bound(shared.blocks.most[number]);
    float score = kMaskedLogit;
    if (most >= row.bound && most != kMaskedLogit) {
      const RaceDraw race = race_bits(number, drawing.position, drawing.seed);
      // As in Drawing::may_win(); the last term is more than the roundings.
      const float time = fmaxf(__uint2float_rd(~race.bits), 0.5F) * 0x1p-36F;
      const float tempered = row.processor.apply_temperature(most);
      score = tempered - __logf(time) + (0.01F + fabsf(tempered) * 0x1p-20F);
    }
    shared.blocks.most[number] = upper_bits(score);
  }
}

/// Takes the groups that may win, each warp's most promising one first, so that there is something
/// to beat. All threads.
template <bool kPlain>
__device__ Best draw_groups(const TopP<kPlain>& row, Shared& shared, Drawing& drawing) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = static_cast<int>(threadIdx.x) / 32 * kBlockTokens;
  const auto most_at = [&](int block) { return shared.blocks.most[race_group(block + lane * 4)]; };
  const auto value_of = [&row](int id) { return row.value(id); };
  std::uint32_t top = 0;
  int top_block = begin;
  for (int block = begin; block < row.tokens.tokens; block += kBlocksStep) {
    const std::uint32_t most = most_at(block);
    if (most > top) {
      top = most;
      top_block = block;
    }
  }
  const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, top);
  if (largest != 0) {
    const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, top == largest))) - 1;
    drawing.take(1U << owner, __shfl_sync(0xFFFFFFFFU, top_block, owner), value_of);
  }
  __syncthreads();
  for (int block = begin; block < row.tokens.tokens; block += kBlocksStep) {
    const float most = upper_bound(most_at(block));
    const std::uint32_t groups =
        __ballot_sync(0xFFFFFFFFU, most != kMaskedLogit && !(most < drawing.lead()));
    if (groups != 0) drawing.take(groups, block, value_of);
  }
  return block_best(drawing.best, shared.best);
}

/// top_p alone. The id, -1, or kSampleDeferred. All threads.
template <bool kPlain>
__device__ int sample_top_p(const SampleRow& row,
                            const Row& tokens,
                            const LogitsProcessor& processor,
                            Shared& shared) {
  Selection& selection = shared.selection;
  Histogram histogram{0.0F, shared_address(selection.bins)};
  float largest;
  const int status = add_tokens<kPlain>(tokens, processor, shared, histogram, largest);
  if (status != 0) return status;
  const auto above =
      static_cast<int>(histogram.top - bin_middle(processor.apply_temperature(largest)));
  const auto scale = [&](int bin) { return bin_scale(max(bin - above, 0)); };  // none lies above
  const auto target = [&](std::uint64_t all) { return top_p_target(row.top_p, all); };
  if (!find_bin(selection, 0, target, scale)) return kSampleDeferred;
  const int chosen = selection.chosen;
  const float middle = histogram.top - static_cast<float>(chosen);
  const float lower = (middle - 1.0F) / kBinsPerNat;
  TopP<kPlain> found{tokens, processor, middle,
                     lower * row.temperature - (fabsf(lower) + 1.0F) * row.temperature * 0x1p-16F,
                     kMaskedLogit};
  Drawing drawing{row.seed, static_cast<std::uint64_t>(row.output_position), &shared.leading, {}};
  if (threadIdx.x == 0) shared.leading = ordered(kMaskedLogit);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  bound_groups(found, shared, drawing);
  int id = draw_groups(found, shared, drawing).id;
  if (id < 0) return kSampleDeferred;
  const float winner = processor.apply_temperature(logit_of<kPlain>(tokens, processor, id));
  if (bin_middle(winner) != middle) return id;
  // The threshold itself, among the bin's values.
  const Binning binning{histogram.top, true};
  const float upper = (middle + 1.0F) / kBinsPerNat;
  const float above_bin =
      upper * row.temperature + (fabsf(upper) + 1.0F) * row.temperature * 0x1p-16F;
  const auto may_lie_in_it = [&](float raw) { return raw >= found.bound && raw <= above_bin; };
  const auto list = [&](float now) {
    if (!may_lie_in_it(now)) return;
    const float value = processor.apply_temperature(now);
    if (bin_middle(value) != middle) return;
    const int place = atomicAdd(&shared.count, 1);
    if (place >= kListMax) return;
    shared.blocks.values[place] = value;
    shared.weights[place] = binning.weight(value);
  };
  if constexpr (kPlain) {
    each_token(tokens, [&](int, float raw) { list(raw); });
  } else {
    // What lies there, and what a change may bring there, are first listed.
    list_changes(tokens, processor, shared);
    const int changes = shared.listed;
    __syncthreads();
    each_token(tokens, [&](int id, float raw) {
      if (!may_lie_in_it(raw)) return;
      const int place = atomicAdd(&shared.listed, 1);
      if (place < kChangesMax) shared.blocks.changes[place] = id;
    });
    __syncthreads();
    if (shared.listed > kChangesMax) return kSampleDeferred;
    each_listed(tokens, processor, shared, [&](int place, float raw, float now) {
      if (place >= changes || !may_lie_in_it(raw)) list(now);
    });
  }
  __syncthreads();
  const int count = shared.count;
  if (count > kListMax) return kSampleDeferred;
  found.threshold =
      threshold_of_list(selection, shared.blocks.values, shared.weights, count, scale(chosen));
  if (winner >= found.threshold) return id;
  if (threadIdx.x == 0) shared.leading = ordered(kMaskedLogit);
  drawing.best = {};
  return draw_groups(found, shared, drawing).id;
}

/// The id of a row with thresholds, -1, or kSampleDeferred. All threads.
template <bool kPlain>
__device__ __forceinline__ int sample_streamed(const SampleRow& row,
                                               const Row& tokens,
                                               const LogitsProcessor& processor,
                                               Shared& shared) {
  const bool once = (row.top_k > 0 && row.top_k < tokens.tokens) || row.min_p > 0.0F;
  if (once) return sample_candidates<kPlain>(row, tokens, processor, shared);
  if (row.top_p < 1.0F) return sample_top_p<kPlain>(row, tokens, processor, shared);
  return kSampleDeferred;
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_threshold_stream_kernel(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  // NOTE: no wait here, as in sample_threshold_cluster.cu: the kernel before has other rows and waited itself.
  const std::int64_t index = blockIdx.x;
  const RowView view = row_view(p, index);
  if (view.has_thresholds) {
    const SampleRow& row = view.row;
    int id = kSampleDeferred;
    if (takes(p, view)) {
      const Row tokens{view.logits, p.tokens};
      if (row.bias_count == 0 && row.mask_row < 0 && view.counts == nullptr) {
        const LogitsProcessor processor{&row,    nullptr,         nullptr, nullptr, nullptr,
                                        nullptr, row.temperature, 0,       true};
        id = sample_streamed<true>(row, tokens, processor, shared);
      } else {
        const LogitsProcessor processor =
            make_logits_processor(p, view, shared.biased, 0, part_tokens(p.tokens, 1));
        id = sample_streamed<false>(row, tokens, processor, shared);
      }
      cp_async_wait_group<0>();  // of a row that was left to others midway
      __syncthreads();           // NOTE: threads have read the winner's count before it is raised
    }
    if (threadIdx.x == 0) {
      if (id == kSampleDeferred)
        p.ids[index] = id;
      else
        write_top_k(p, index, id, view);
    }
  }
  pdl_begin();
}

}  // namespace

cudaError_t launch_sample_threshold_stream(const Sample& p, cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once(
      [] { return allow_dynamic_shared_memory(sample_threshold_stream_kernel, sizeof(Shared)); });
  if (ready != cudaSuccess) return ready;
  return launch_kernel(
      sample_threshold_stream_kernel,
      {dim3(static_cast<unsigned>(p.row_count)), dim3(kSampleThreads), sizeof(Shared)}, stream, p);
}

const void* kernel_of::sample_threshold_stream() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
