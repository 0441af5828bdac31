// SPDX-License-Identifier: Apache-2.0
// What the sampling kernels share: how a row changes its logits, the noise of a draw, the better of
// two tokens, and where a threshold lies. Thresholds are found by integers that depend on a value
// and on the row's largest alone, so that every kernel, however it divides the row and in whatever
// order it adds, keeps the same tokens.
#pragma once

#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/sampling/sample.h"
#include "sampling/philox.h"

namespace koho::cuda {

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr float kMaskedLogit = -INFINITY;
constexpr std::uint32_t kPromptBit = 0x80000000U;
constexpr float kLog2E = 1.4426950408889634F;

/// What ordered() was given.
__device__ __forceinline__ float unordered(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// sampling/philox.h on the device: its counter, and its keys of the first of ten rounds.
__device__ __forceinline__ void philox_begin(std::uint32_t (&c)[4],
                                             std::uint32_t block,
                                             std::uint32_t kind,
                                             std::uint64_t position) {
  c[0] = block;
  c[1] = kind;
  c[2] = static_cast<std::uint32_t>(position);
  c[3] = static_cast<std::uint32_t>(position >> 32U);
}
struct PhiloxKeys {
  std::uint32_t first;
  std::uint32_t second;

  explicit __device__ __forceinline__ PhiloxKeys(std::uint64_t seed)
      : first(static_cast<std::uint32_t>(seed)), second(static_cast<std::uint32_t>(seed >> 32U)) {}
  __device__ __forceinline__ void next() {
    first += 0x9E3779B9U;
    second += 0xBB67AE85U;
  }
};
__device__ __forceinline__ void philox_round(std::uint32_t (&c)[4], const PhiloxKeys& keys) {
  const std::uint64_t product0 = static_cast<std::uint64_t>(0xD2511F53U) * c[0];
  const std::uint64_t product1 = static_cast<std::uint64_t>(0xCD9E8D57U) * c[2];
  c[0] = static_cast<std::uint32_t>(product1 >> 32U) ^ c[1] ^ keys.first;
  c[1] = static_cast<std::uint32_t>(product1);
  c[2] = static_cast<std::uint32_t>(product0 >> 32U) ^ c[3] ^ keys.second;
  c[3] = static_cast<std::uint32_t>(product0);
}

// ---- the race of sampling/philox.h: a warp reads a block of 512 tokens, lane l group l of it

constexpr int kGroupTokens = kRaceGroup;
constexpr int kGroupVectors = kGroupTokens / 4;
constexpr int kBlockTokens = kRaceBlock;
constexpr int kVectorStep = 128;  // tokens from one vector of a group to the next
constexpr int kBlocksStep = kSampleWarps * kBlockTokens;

/// Neighbouring tokens of one of `parts` parts of a row: whole blocks.
__device__ __forceinline__ int part_tokens(int tokens, int parts) {
  return ((tokens + parts - 1) / parts + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

/// A token of a block: member `member` of lane `lane`'s group.
__device__ __forceinline__ int block_token(int lane, int member) {
  return member / 4 * kVectorStep + lane * 4 + member % 4;
}

/// A group's random bits.
__device__ __forceinline__ RaceDraw race_bits(std::int32_t group,
                                              std::uint64_t position,
                                              std::uint64_t seed) {
  std::uint32_t bits[4];
  philox_begin(bits, static_cast<std::uint32_t>(group), 1, position);
  PhiloxKeys keys(seed);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    philox_round(bits, keys);
    keys.next();
  }
  return {bits[0], static_cast<std::int32_t>(bits[1] % kGroupTokens)};
}

/// -log(u) of u = (bits + 0.5) / 2^32; 1 - u is what the bits give exactly where u is near 1.
__device__ __forceinline__ float exponential(std::uint32_t bits) {
  const float rest = (static_cast<float>(~bits) + 0.5F) * 0x1p-32F;  // 1 - u
  return rest < 0.5F ? -log1pf(-rest) : -logf((static_cast<float>(bits) + 0.5F) * 0x1p-32F);
}

/// What is added to a token's logit. Small rather than fast: few tokens are asked for it, and what
/// it costs them is mostly the reading of its instructions.
inline __device__ __noinline__ float race_noise(int id,
                                                std::uint64_t position,
                                                std::uint64_t seed) {
  std::uint32_t group[4];
  std::uint32_t token[4];
  philox_begin(group, static_cast<std::uint32_t>(race_group(id)), 1, position);
  philox_begin(token, static_cast<std::uint32_t>(id) / 4, 0, position);
  PhiloxKeys keys(seed);
#pragma unroll 1
  for (int round = 0; round < 10; ++round) {
    philox_round(group, keys);
    philox_round(token, keys);
    keys.next();
  }
  const std::uint32_t low = id % 2 == 0 ? token[0] : token[1];
  const std::uint32_t high = id % 2 == 0 ? token[2] : token[3];
  std::uint32_t bits = id % 4 < 2 ? low : high;
  float time = 0.0F;  // behind the earliest
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const float drawn = exponential(bits);
    time = i == 0 ? (static_cast<int>(group[1] % kGroupTokens) == race_member(id) ? 0.0F : drawn)
                  : fmaf(drawn, 1.0F / kGroupTokens, time);
    bits = group[0];
  }
  return -logf(time);
}

constexpr int kBiasedTokens = 128;  // of a word of LogitsProcessor::biased

/// What a row's logits become before any cut: biases, penalties, then the mask. A lane changes its
/// group of a block where the block lies in shared memory, or four tokens or one in registers.
struct LogitsProcessor {
  const SampleRow* row;
  const SampleBias* biases;
  const std::uint32_t* biased;   // a bit for four tokens, from `first` on, or null: in `biases`?
  const std::int32_t* mask;      // or null
  const std::int32_t* counts;    // or null
  const std::uint16_t* nonzero;  // of the counts: 16 bits a group
  float temperature;
  int first;
  bool plain;  // nothing but temperature

  /// The members of this lane's group that have a count.
  __device__ __forceinline__ std::uint32_t counted(int block) const {
    return counts == nullptr ? 0U : nonzero[race_group(block + lane_token(0))];
  }
  /// The count of the first of them.
  __device__ __forceinline__ std::int32_t first_count(int block, std::uint32_t counted) const {
    return counted == 0 ? 0 : counts[block + lane_token(__ffs(static_cast<int>(counted)) - 1)];
  }

  /// Biases and penalties of this lane's group of the block at `values`. `count`: first_count().
  __device__ __forceinline__ void change(float* values,
                                         int block,
                                         std::uint32_t counted,
                                         std::int32_t count) const {
    if (has_bias(block)) {
#pragma unroll 1
      for (int i = 0; i < row->bias_count; ++i) {
        const int at = biases[i].token - block;
        if (at >= 0 && at < kBlockTokens && at / 4 % 32 == static_cast<int>(threadIdx.x) % 32)
          values[at] += biases[i].bias;
      }
    }
#pragma unroll 1
    for (bool first_of_them = true; counted != 0; counted &= counted - 1) {
      const int at = lane_token(__ffs(static_cast<int>(counted)) - 1);
      values[at] = apply_penalties(values[at], first_of_them ? count : counts[block + at]);
      first_of_them = false;
    }
  }
  /// Biases and penalties of four tokens from `id` on. `counted`: vector_counted().
  __device__ __forceinline__ float4 changed(float4 v, int id, std::uint32_t counted) const {
    std::uint32_t members = counted | (vector_has_bias(id) ? 0xFU : 0U);
#pragma unroll 1
    for (; members != 0; members &= members - 1) {
      const int j = __ffs(static_cast<int>(members)) - 1;
      const float value = j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
      const bool counts_it = (counted >> j & 1U) != 0;
      const float now = apply_penalties(with_bias(value, id + j), counts_it ? counts[id + j] : 0);
      v = make_float4(j == 0 ? now : v.x, j == 1 ? now : v.y, j == 2 ? now : v.z,
                      j == 3 ? now : v.w);
    }
    return v;
  }
  /// Which of four tokens from `id` on have a count.
  __device__ __forceinline__ std::uint32_t vector_counted(int id) const {
    return counts == nullptr ? 0U
                             : std::uint32_t{nonzero[race_group(id)]} >> race_member(id) & 0xFU;
  }
  /// What becomes of a token's logit, whose count is `entry`, if it is not masked.
  __device__ __forceinline__ float changed(float logit, int id, std::int32_t entry) const {
    return apply_penalties(with_bias(logit, id), entry);
  }
  __device__ __forceinline__ std::int32_t entry(int id) const {
    return counts == nullptr ? 0 : counts[id];
  }
  __device__ __forceinline__ bool allows(int id) const {
    return mask == nullptr ||
           (static_cast<std::uint32_t>(mask[id / 32]) >> (static_cast<unsigned>(id) % 32) & 1U) !=
               0;
  }
  /// One token's logit as it is changed and masked.
  __device__ __forceinline__ float logit(const float* logits, int id) const {
    return allows(id) ? changed(logits[id], id, entry(id)) : kMaskedLogit;
  }
  /// The members of this lane's group of a block, in bits, that a bias or a count may change.
  __device__ __forceinline__ std::uint32_t changes(int block) const {
    std::uint32_t members = counted(block);
    if (biased != nullptr)
#pragma unroll
      for (int i = 0; i < kGroupVectors; ++i)
        if ((biased[(block - first) / kBiasedTokens + i] >> (threadIdx.x % 32) & 1U) != 0)
          members |= 0xFU << (4 * i);
    return members;
  }
  /// Whether a token from `id` to `id` + 3 has a bias.
  __device__ __forceinline__ bool vector_has_bias(int id) const {
    return biased != nullptr && (biased[(id - first) / kBiasedTokens] >> (id / 4 % 32) & 1U) != 0;
  }
  /// Whether penalties may make a logit larger.
  __device__ __forceinline__ bool raises() const {
    return counts != nullptr && (row->repetition_penalty < 1.0F || row->frequency_penalty < 0.0F ||
                                 row->presence_penalty < 0.0F);
  }
  /// The mask of four tokens from `id` on.
  __device__ __forceinline__ float4 masked(const float4& v, int id) const {
    const std::uint32_t allowed =
        static_cast<std::uint32_t>(mask[id / 32]) >> (static_cast<unsigned>(id) % 32);
    return make_float4(
        (allowed & 1U) != 0 ? v.x : kMaskedLogit, (allowed & 2U) != 0 ? v.y : kMaskedLogit,
        (allowed & 4U) != 0 ? v.z : kMaskedLogit, (allowed & 8U) != 0 ? v.w : kMaskedLogit);
  }
  __device__ __forceinline__ float apply_temperature(float logit) const {
    return temperature > 0.0F && temperature != 1.0F ? logit / temperature : logit;
  }

 private:
  __device__ __forceinline__ int lane_token(int member) const {
    return block_token(static_cast<int>(threadIdx.x) % 32, member);
  }
  /// Whether a token of this lane's group has a bias.
  __device__ __forceinline__ bool has_bias(int block) const {
    if (biased == nullptr) return false;
    std::uint32_t words = 0;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) words |= biased[(block - first) / kBiasedTokens + i];
    return (words >> (threadIdx.x % 32) & 1U) != 0;
  }
  __device__ __forceinline__ float with_bias(float logit, int id) const {
    if (vector_has_bias(id))
#pragma unroll 1
      for (int i = 0; i < row->bias_count; ++i)
        if (biases[i].token == id) logit += biases[i].bias;
    return logit;
  }
  __device__ __forceinline__ float apply_penalties(float logit, std::int32_t entry) const {
    if (entry == 0) return logit;
    const float repetition = row->repetition_penalty;
    if (repetition != 1.0F) logit = logit > 0.0F ? logit / repetition : logit * repetition;
    const std::int32_t times = entry & ~static_cast<std::int32_t>(kPromptBit);
    if (times > 0)
      logit -= static_cast<float>(times) * row->frequency_penalty + row->presence_penalty;
    return logit;
  }
};
static_assert(kVectorStep == kBiasedTokens);

/// A token and its score; the larger score wins, then the lower id.
struct Best {
  float score = kMaskedLogit;
  int id = -1;
  __device__ __forceinline__ void offer(float other, int other_id) {
    if (other > score || (other == score && other != kMaskedLogit && (id < 0 || other_id < id))) {
      score = other;
      id = other_id;
    }
  }
};

struct BestScratch {
  float scores[kSampleWarps];
  int ids[kSampleWarps];
};

__device__ __forceinline__ Best block_best(Best best, BestScratch& scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float score = __shfl_xor_sync(0xFFFFFFFFU, best.score, offset);
    const int id = __shfl_xor_sync(0xFFFFFFFFU, best.id, offset);
    if (id >= 0) best.offer(score, id);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scratch.scores[threadIdx.x / 32] = best.score;
    scratch.ids[threadIdx.x / 32] = best.id;
  }
  __syncthreads();
  Best all;
  for (int warp = 0; warp < kSampleWarps; ++warp)
    if (scratch.ids[warp] >= 0) all.offer(scratch.scores[warp], scratch.ids[warp]);
  return all;
}

/// Draws without a look at most tokens: who knows a group's largest value asks whether any of it
/// may still win, and only then are its tokens taken one by one.
struct Drawing {
  std::uint64_t seed;
  std::uint64_t position;
  std::uint32_t* leading;  // shared: ordered(the best score so far), which any thread raises
  Best best;

  __device__ __forceinline__ float lead() const {
    return fmaxf(best.score, unordered(*static_cast<volatile std::uint32_t*>(leading)));
  }
  /// All threads of a warp.
  __device__ __forceinline__ void raise(float score) {
    const std::uint32_t most = __reduce_max_sync(0xFFFFFFFFU, ordered(score));
    if (threadIdx.x % 32 == 0 && most > *static_cast<volatile std::uint32_t*>(leading))
      atomicMax(leading, most);
  }

  /// Whether a token of a group with these bits may win, whose logits times `scale`
  /// (log2(e) / temperature) are at most `most`. Its time is above (1 - u) / 16, and it must be
  /// below exp(value - lead).
  __device__ __forceinline__ bool may_win(std::uint32_t bits,
                                          float most,
                                          float scale,
                                          float lead) const {
    const float offset = lead * kLog2E;
    constexpr float kMargin = 0.02F;  // more than the roundings; they are relative to `lead`
    const float base = 36.0F + kMargin + fabsf(offset) * 0x1p-20F - offset;
    return most != kMaskedLogit &&
           !(__uint2float_rd(~bits) > exp2_approximate(fmaf(most, scale, base)));  // or NaN
  }

  /// Raises what must be beaten to the best of the first block's earliest tokens: cheap, and most
  /// of the others cannot win then. `value_of(id)`: its logit, tempered, -infinity if it is out.
  /// All threads of a warp.
  template <typename Value>
  __device__ __forceinline__ void open(int block, const Value& value_of) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const RaceDraw race = race_bits(race_group(block + lane * 4), position, seed);
    float score = value_of(block + block_token(lane, race.member));
    if (score != kMaskedLogit) score -= logf(exponential(race.bits) * (1.0F / kGroupTokens));
    raise(score == score ? score : kMaskedLogit);
  }

  /// Takes the tokens of the block's groups in `groups`, a lane a token. All threads of a warp.
  template <typename Value>
  __device__ __forceinline__ void take(std::uint32_t groups, int block, const Value& value_of) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    while (groups != 0) {
      const int first = __ffs(static_cast<int>(groups)) - 1;
      groups &= groups - 1;
      const int second = groups != 0 ? __ffs(static_cast<int>(groups)) - 1 : first;
      groups &= groups - 1;
      const int id = block + block_token(lane < kGroupTokens ? first : second, lane % kGroupTokens);
      float score = value_of(id);
      if (score != kMaskedLogit) score += race_noise(id, position, seed);
      best.offer(score, id);
    }
    raise(best.score);
  }
};

/// The larger of two, the largest of four; NaN if any is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ float max_or_nan(const float4& v) {
  return max_or_nan(max_or_nan(v.x, v.y), max_or_nan(v.z, v.w));
}

// ---- thresholds

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

/// The middle of a tempered value's bin, in bins: they are 1/64 wide and lie alike for all rows.
__device__ __forceinline__ float bin_middle(float value) {
  return rintf(kBinsPerNat * value);
}

/// kWeightOne * exp(rest / 64), `rest` being 64 * value less its bin's middle: three terms, which
/// are right to 2^-23, rounded to an integer.
__device__ __forceinline__ std::uint32_t bin_weight(float rest) {
  constexpr float kLinear = kWeightOne / kBinsPerNat;
  constexpr float kSquare = kWeightOne / (2.0F * kBinsPerNat * kBinsPerNat);
  return __float_as_uint(__fmaf_rn(rest, __fmaf_rn(rest, kSquare, kLinear), kWeightOne + kMagic)) -
         kMagicBits;
}

/// What the weights of a bin count for, `below` bins below that of the row's largest value:
/// exp(-below / 64), right to 2^-18 and to 2^-33 of the largest. Nothing from 1,500 bins on.
__device__ __forceinline__ std::uint64_t bin_scale(int below) {
  constexpr float kStep = -kLog2E / kBinsPerNat;
  return __float2ull_rn(kScaleOne * exp2_approximate(__fmul_rn(static_cast<float>(below), kStep)));
}

/// The bins of a row: 0 for its largest value, rising as values fall, the last for all the rest.
struct Binning {
  float top;         // bin_middle(largest)
  bool probability;  // or values count as one each

  __device__ __forceinline__ int bin(float value) const {
    return static_cast<int>(fminf(top - bin_middle(value), kBins - 1.0F));
  }
  __device__ __forceinline__ std::uint32_t weight(float value) const {
    // NOTE: between the borders also for infinity, whose rest is NaN.
    const float rest = kBinsPerNat * value - bin_middle(value);
    return probability ? bin_weight(fminf(fmaxf(rest, -0.5F), 0.5F)) : 1U;
  }
  __device__ __forceinline__ std::uint64_t scale(int bin) const {
    return probability ? bin_scale(bin) : 1U;
  }
};

/// What is to be reached of the weight of `all`.
__device__ __forceinline__ std::uint64_t top_p_target(float top_p, std::uint64_t all) {
  const double part = static_cast<double>(top_p) * __ull2double_rn(all);
  return min(max(__double2ull_ru(part), 1ULL), static_cast<unsigned long long>(all));
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

/// What the kernels know of a row.
struct RowView {
  const SampleRow& row;
  const float* logits;
  std::int32_t* counts;    // or null
  std::uint16_t* nonzero;  // of the counts
  bool random;
  bool has_thresholds;  // the business of the cut kernel: thresholds or log-probabilities
};

__device__ __forceinline__ RowView row_view(const Sample& p, std::int64_t index) {
  RowView view{p.rows[index], p.logits + index * p.logits_stride, nullptr, nullptr, false, false};
  const SampleRow& row = view.row;
  if (row.counts_slot >= 0 && p.counts != nullptr) {
    const auto slot = static_cast<std::int64_t>(row.counts_slot);
    view.counts = p.counts + slot * p.vocabulary;
    view.nonzero = p.nonzero + slot * race_groups(p.vocabulary);
  }
  view.random = row.temperature > 0.0F;
  const bool logprobs = row.logprobs >= 0 && (p.logprobs != nullptr || p.top_ids != nullptr);
  view.has_thresholds =
      logprobs || (view.random && (row.min_p > 0.0F || row.top_k > 0 || row.top_p < 1.0F));
  return view;
}

/// Marks the tokens first .. first + count - 1 that have a bias and gathers what changes a row's
/// logits. `first` and `count` are multiples of 512. All threads.
__device__ __forceinline__ LogitsProcessor make_logits_processor(
    const Sample& p, const RowView& view, std::uint32_t* biased, int first, int count) {
  const SampleRow& row = view.row;
  const std::int32_t* mask = row.mask_row >= 0 ? p.masks + static_cast<std::int64_t>(row.mask_row) *
                                                               ((p.vocabulary + 31) / 32)
                                               : nullptr;
  const SampleBias* biases = p.biases + row.bias_begin;
  if (row.bias_count > 0) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count / kBiasedTokens; i += kSampleThreads)
      biased[i] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < row.bias_count; i += kSampleThreads) {
      const int token = biases[i].token - first;
      if (token >= 0 && token < count)
        atomicOr(&biased[token / kBiasedTokens], 1U << (token / 4 % 32));
    }
    __syncthreads();
  }
  return {&row,
          biases,
          row.bias_count > 0 ? biased : nullptr,
          mask,
          view.counts,
          view.nonzero,
          row.temperature,
          first,
          row.bias_count == 0 && mask == nullptr && view.counts == nullptr};
}

/// Writes what was chosen, and counts it if the row counts.
__device__ __forceinline__ void write_top_k(const Sample& p,
                                            std::int64_t index,
                                            int id,
                                            const RowView& view) {
  p.ids[index] = id;
  if (id >= 0 && view.counts != nullptr) {
    ++view.counts[id];
    view.nonzero[race_group(id)] |= static_cast<std::uint16_t>(1U << race_member(id));
  }
  if (p.logprobs != nullptr) p.logprobs[index] = 0.0F;
}

// ---- launchers of the two kernels

/// Rows without thresholds and log-probabilities, in one pass; others are left alone.
cudaError_t launch_sample_gumbel_max(const Sample& p, cudaStream_t stream);
/// Rows with thresholds that fit its lists; the ids of others with thresholds become kSampleDeferred.
cudaError_t launch_sample_threshold_stream(const Sample& p, cudaStream_t stream);
/// The others.
cudaError_t launch_sample_threshold_cluster(const Sample& p, cudaStream_t stream);

}  // namespace koho::cuda
