// SPDX-License-Identifier: Apache-2.0
// What all sampling kernels share: the random bits of sampling/philox.h on the device, the draw
// over groups of tokens, the better of two tokens, and how a kernel finds a row and writes its
// result.
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

/// The float whose ordered() key this is.
__device__ __forceinline__ float unordered(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// Philox of sampling/philox.h on the device: the counter, and the keys of the first of ten rounds.
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
  const std::uint64_t wide0 = static_cast<std::uint64_t>(0xD2511F53U) * c[0];
  const std::uint64_t wide1 = static_cast<std::uint64_t>(0xCD9E8D57U) * c[2];
  c[0] = static_cast<std::uint32_t>(wide1 >> 32U) ^ c[1] ^ keys.first;
  c[1] = static_cast<std::uint32_t>(wide1);
  c[2] = static_cast<std::uint32_t>(wide0 >> 32U) ^ c[3] ^ keys.second;
  c[3] = static_cast<std::uint32_t>(wide0);
}

// ---- groups of tokens (sampling/philox.h): a warp reads a block of 512 tokens, lane l its group l

constexpr int kGroupTokens = kRaceGroup;
constexpr int kGroupVectors = kGroupTokens / 4;
constexpr int kBlockTokens = kRaceBlock;
constexpr int kVectorStep = 128;  // tokens from one vector of a group to the next
constexpr int kBlocksStep = kSampleWarps * kBlockTokens;

/// Tokens of one of `shards` contiguous shards of a row: whole blocks.
__device__ __forceinline__ int shard_tokens(int tokens, int shards) {
  return ((tokens + shards - 1) / shards + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
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

/// -log(u) of u = (bits + 0.5) / 2^32; where u is near 1, the bits give 1 - u exactly.
__device__ __forceinline__ float exponential(std::uint32_t bits) {
  const float rest = (static_cast<float>(~bits) + 0.5F) * 0x1p-32F;  // 1 - u
  return rest < 0.5F ? -log1pf(-rest) : -logf((static_cast<float>(bits) + 0.5F) * 0x1p-32F);
}

/// The Gumbel noise to add to a token's logit. NOTE: small rather than fast. Few tokens need it,
/// and most of its cost is fetching its instructions.
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
  float time = 0.0F;  // after the group's earliest
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const float waited = exponential(bits);
    time = i == 0 ? (static_cast<int>(group[1] % kGroupTokens) == race_member(id) ? 0.0F : waited)
                  : fmaf(waited, 1.0F / kGroupTokens, time);
    bits = group[0];
  }
  return -logf(time);
}

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

/// The state of a draw. It looks at few tokens one by one: whoever knows the largest logit of a
/// group asks may_win() from the group's random bits, and only then take() adds noise to its
/// tokens.
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
  /// of the others cannot win then. `value_of(id)`: its logit, after temperature, -infinity if it
  /// is out. All threads of a warp.
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

/// A row and what a kernel must know to find whether it is its own.
struct RowView {
  const SamplingRow& row;
  const float* logits;
  std::int32_t* counts;    // or null
  std::uint16_t* nonzero;  // of the counts
  bool random;
  bool has_thresholds;  // or log-probabilities: a row of the threshold kernels
};

__device__ __forceinline__ RowView row_view(const Sample& p, std::int64_t index) {
  RowView view{p.rows[index], p.logits + index * p.logits_stride, nullptr, nullptr, false, false};
  const SamplingRow& row = view.row;
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

/// Writes the sampled token, and counts it if the row has counts.
__device__ __forceinline__ void write_sampled(const Sample& p,
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

}  // namespace koho::cuda
