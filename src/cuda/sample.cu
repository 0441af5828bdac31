// SPDX-License-Identifier: Apache-2.0
// Sampling without a sort: one block a row.
//
//   pass 1     maximum, sum of exponentials, greedy choice or Gumbel draw over all tokens, NaN
//   check if cut     the threshold of top_k or top_p is a radix selection over the bits of the
//   logits, 11 a
//              round, weighted by 1 (top_k) or by the probability in 64-bit fixed point (top_p), so
//              that sums do not depend on their order; once few tokens share the leading bits they
//              are kept in shared memory and the logits are not read again
//   last pass  the draw over what is kept; the counts; log-probabilities when wanted
//
// Bytes: the logits once for greedy and plain temperature, up to 3 times more under cuts.
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "cuda/sample.h"

namespace koho::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kListMax = 6144;
constexpr float kCoarseSteps = 64.0F;  // bins of 1/64, over 32 below the largest
constexpr float kOut = -INFINITY;
constexpr std::uint32_t kPromptBit = 0x80000000U;
constexpr float kMassOne = 1099511627776.0F;  // 2^40: the mass of the likeliest token

constexpr int kBiasWords = 8192;  // vocabularies to 262,144: one bit a token that has a bias

struct Reduction {
  float scores[kWarps];
  int ids[kWarps];
};

struct Shared {
  std::uint32_t biased[kBiasWords];
  Reduction best;
  unsigned long long bins[kBins];
  float list[kListMax];
  int list_count;
  double reduce_double[kWarps];
  float reduce_float[kWarps];
  int reduce_int[kWarps];
  unsigned long long reduce_mass[kWarps];
  unsigned long long chosen_above;  // weight above the chosen digit
  unsigned long long target;
  int chosen_digit;
};

/// An order that unsigned comparison keeps.
__device__ __forceinline__ std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float unordered(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// sampling/philox.h on the device: the bits of tokens 4 * block .. 4 * block + 3.
__device__ __forceinline__ uint4 philox(std::uint32_t block,
                                        std::uint64_t position,
                                        std::uint64_t seed) {
  uint4 c = make_uint4(block, 0, static_cast<std::uint32_t>(position),
                       static_cast<std::uint32_t>(position >> 32U));
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32U);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, c.x);
    const std::uint32_t low0 = 0xD2511F53U * c.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, c.z);
    const std::uint32_t low1 = 0xCD9E8D57U * c.z;
    c = make_uint4(high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c;
}

/// -log(-log(u)) of u = (bits + 0.5) / 2^32. Near u = 1, where the large values are, -log(u) comes
/// from 1 - u, which the bits give exactly.
__device__ __forceinline__ float gumbel(std::uint32_t bits) {
  const float rest = (static_cast<float>(~bits) + 0.5F) * 0x1p-32F;  // 1 - u
  const float u = (static_cast<float>(bits) + 0.5F) * 0x1p-32F;
  const float small = rest * (1.0F + rest * (0.5F + rest * (1.0F / 3.0F)));
  return -__logf(rest < 0x1p-9F ? small : -__logf(u));
}

/// What a row's logits become before any cut.
struct Modifier {
  const SampleRow row;
  const SampleBias* biases;
  const std::uint32_t* biased;  // bits of the tokens in `biases`
  const std::int32_t* mask;     // or null
  const std::int32_t* counts;   // or null
  int tokens;
  bool plain;  // nothing but temperature

  __device__ __forceinline__ float apply(float logit, int id) const {
    if (!plain) {
      if (row.bias_count > 0 && ((biased[id / 32] >> (id % 32)) & 1U) != 0)
        for (int i = 0; i < row.bias_count; ++i)
          if (biases[i].token == id) logit += biases[i].bias;
      if (counts != nullptr) {
        const std::int32_t entry = counts[id];
        if (entry != 0) {
          logit = logit > 0.0F ? logit / row.repetition_penalty : logit * row.repetition_penalty;
          const std::int32_t times = entry & ~static_cast<std::int32_t>(kPromptBit);
          if (times > 0)
            logit -= static_cast<float>(times) * row.frequency_penalty + row.presence_penalty;
        }
      }
      if (mask != nullptr && ((static_cast<std::uint32_t>(mask[id / 32]) >> (id % 32)) & 1U) == 0)
        return kOut;
    }
    return row.temperature > 0.0F ? logit / row.temperature : logit;
  }
};

/// Calls `use(id, logit)` for this thread's share of part `part` of the row, unmodified. Four loads
/// are in flight a thread; the body is there once.
template <typename Use>
__device__ __forceinline__ void each_logit(
    const float* logits, int tokens, const Use& use, int part = 0, int parts = 1) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(logits) % 16 == 0;
  const int vectors = aligned ? tokens / 4 : 0;
  const auto* source = reinterpret_cast<const float4*>(logits);
  const auto load = [&](int i) {
    return i < vectors ? source[i] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  };
  const int step = kThreads * parts;
  const int first = part * kThreads + static_cast<int>(threadIdx.x);
  int i = first;
  float4 ahead[4] = {load(i), load(i + step), load(i + 2 * step), load(i + 3 * step)};
#pragma unroll 1
  for (; i < vectors; i += step) {
    const float4 four = ahead[0];
    ahead[0] = ahead[1];
    ahead[1] = ahead[2];
    ahead[2] = ahead[3];
    ahead[3] = load(i + 4 * step);
    use(4 * i, four.x);
    use(4 * i + 1, four.y);
    use(4 * i + 2, four.z);
    use(4 * i + 3, four.w);
  }
#pragma unroll 1
  for (i = vectors * 4 + first; i < tokens; i += step) use(i, logits[i]);
}

template <typename Value, typename Combine>
__device__ __forceinline__ Value block_all(Value value, Value* scratch, const Combine& combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, scratch[warp]);
  return value;
}

/// A token and its score; the larger score wins, then the lower id.
struct Best {
  float score = kOut;
  int id = -1;
  __device__ __forceinline__ void offer(float other, int other_id) {
    if (other > score || (other == score && other != kOut && (id < 0 || other_id < id))) {
      score = other;
      id = other_id;
    }
  }
};

__device__ Best block_best(Best best, Reduction& reduction) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float score = __shfl_xor_sync(0xFFFFFFFFU, best.score, offset);
    const int id = __shfl_xor_sync(0xFFFFFFFFU, best.id, offset);
    if (id >= 0) best.offer(score, id);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    reduction.scores[threadIdx.x / 32] = best.score;
    reduction.ids[threadIdx.x / 32] = best.id;
  }
  __syncthreads();
  Best all;
  for (int warp = 0; warp < kWarps; ++warp)
    if (reduction.ids[warp] >= 0) all.offer(reduction.scores[warp], reduction.ids[warp]);
  return all;
}

__device__ __forceinline__ unsigned long long mass_of(float logit, float largest) {
  return static_cast<unsigned long long>(expf(logit - largest) * kMassOne);
}

__device__ __forceinline__ void clear_bins(Shared& shared) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.bins[i] = 0;
  __syncthreads();
}

/// Walks the bins from the highest until `above` and their weights reach the target: sets the
/// chosen digit and the weight above it. False if all bins do not reach it. With `target_of`, the
/// target is what that makes of the weight of all bins. All threads.
template <typename Target>
__device__ bool find_digit(Shared& shared,
                           unsigned long long above,
                           unsigned long long target,
                           const Target* target_of) {
  __syncthreads();
  if (threadIdx.x == 0) shared.chosen_digit = -1;
  __syncthreads();
  if (threadIdx.x < 32) {  // warp 0: 64 bins a lane, then the lanes in order
    constexpr int kEach = kBins / 32;
    const int lane = static_cast<int>(threadIdx.x);
    unsigned long long sum = 0;
    for (int i = 0; i < kEach; ++i) sum += shared.bins[kBins - 1 - lane * kEach - i];
    unsigned long long before = sum;
    for (int offset = 1; offset < 32; offset *= 2) {
      const unsigned long long other = __shfl_up_sync(0xFFFFFFFFU, before, offset);
      if (lane >= offset) before += other;
    }
    if (target_of != nullptr) target = (*target_of)(__shfl_sync(0xFFFFFFFFU, before, 31));
    if (lane == 0) shared.target = target;
    before += above - sum;
    if (before < target && before + sum >= target) {
      for (int i = 0; i < kEach; ++i) {
        const int digit = kBins - 1 - lane * kEach - i;
        if (before + shared.bins[digit] >= target) {
          shared.chosen_digit = digit;
          shared.chosen_above = before;
          break;
        }
        before += shared.bins[digit];
      }
    }
  }
  __syncthreads();
  return shared.chosen_digit >= 0;
}

/// Keeps the values that `belongs` picks in the list; false if they are too many. All threads.
template <typename Each, typename Belongs>
__device__ bool keep_list(Shared& shared, const Each& each, const Belongs& belongs) {
  __syncthreads();
  if (threadIdx.x == 0) shared.list_count = 0;
  __syncthreads();
  each([&](float value) {
    if (!belongs(value)) return;
    const int place = atomicAdd(&shared.list_count, 1);
    if (place < kListMax) shared.list[place] = value;
  });
  __syncthreads();
  return shared.list_count <= kListMax;
}

/// The largest value v such that the weight of all values >= v reaches target_of(weight of all);
/// kOut if all of them do not. `each(use)` calls use(value) for this thread's values;
/// `weigh(value)` is a value's weight.
template <typename Target, typename Each, typename Weigh>
__device__ float select_threshold(
    Shared& shared, float largest, const Target& target_of, const Each& each, const Weigh& weigh) {
  // First by distance from the largest value: equal steps spread the values over the bins, so few
  // additions meet in one. Then by the bits of the values in the bin found, or of all values if
  // they are too many to keep.
  const auto coarse = [&](float value) {
    return kBins - 1 - static_cast<int>(fminf((largest - value) * kCoarseSteps, kBins - 1.0F));
  };
  unsigned long long target = 0;
  unsigned long long above = 0;
  clear_bins(shared);
  each([&](float value) { atomicAdd(&shared.bins[coarse(value)], weigh(value)); });
  if (!find_digit(shared, 0, target, &target_of)) return kOut;
  const int bin = shared.chosen_digit;
  const unsigned long long above_bin = shared.chosen_above;
  target = shared.target;
  bool listed = keep_list(shared, each, [&](float value) { return coarse(value) == bin; });
  if (listed) above = above_bin;
  std::uint32_t prefix = 0;  // digits found so far
  int known = 0;             // their bits
  while (known < 32) {
    const int bits = min(kDigitBits, 32 - known);
    clear_bins(shared);
    const auto count = [&](float value) {
      const std::uint32_t key = ordered(value);
      if (known > 0 && key >> (32 - known) != prefix) return;
      atomicAdd(&shared.bins[(key >> (32 - known - bits)) & ((1U << bits) - 1U)], weigh(value));
    };
    if (listed) {
      for (int i = static_cast<int>(threadIdx.x); i < shared.list_count; i += kThreads)
        count(shared.list[i]);
    } else {
      each(count);
    }
    if (!find_digit(shared, above, target, static_cast<const Target*>(nullptr))) return kOut;
    above = shared.chosen_above;
    prefix = (known > 0 ? prefix << bits : 0U) | static_cast<std::uint32_t>(shared.chosen_digit);
    known += bits;
    if (!listed && known < 32)
      listed = keep_list(shared, each,
                         [&](float value) { return ordered(value) >> (32 - known) == prefix; });
  }
  return unordered(prefix);
}

/// The largest `wanted` unmodified logits in order, ties to the lower id.
__device__ void write_top(const Sample& p,
                          const float* logits,
                          std::int64_t row,
                          int wanted,
                          double log_sum,
                          Shared& shared) {
  Best last;  // the one before
  last.score = INFINITY;
  for (int i = 0; i < wanted; ++i) {
    Best best;
    each_logit(logits, p.tokens, [&](int id, float logit) {
      if (logit < last.score || (logit == last.score && id > last.id)) best.offer(logit, id);
    });
    best = block_best(best, shared.best);
    if (threadIdx.x == 0) {
      p.top_ids[row * kSampleTopMax + i] = best.id;
      p.top_logprobs[row * kSampleTopMax + i] =
          static_cast<float>(static_cast<double>(best.score) - log_sum);
    }
    last = best;
    __syncthreads();
  }
}

/// What both kernels know of a row.
struct RowView {
  SampleRow row;
  const float* logits;
  std::int32_t* counts;  // or null
  bool random;
  bool cut;  // the business of the `cut` kernel
};

__device__ __forceinline__ RowView row_view(const Sample& p, std::int64_t index) {
  RowView view{p.rows[index], p.logits + index * p.logits_stride, nullptr, false, false};
  const SampleRow& row = view.row;
  if (row.counts_slot >= 0 && p.counts != nullptr)
    view.counts = p.counts + static_cast<std::int64_t>(row.counts_slot) * p.vocabulary;
  view.random = row.temperature > 0.0F;
  const bool logprobs = row.logprobs >= 0 && (p.logprobs != nullptr || p.top_ids != nullptr);
  view.cut = logprobs || (view.random && (row.min_p > 0.0F || row.top_k > 0 || row.top_p < 1.0F));
  return view;
}

/// Marks the tokens that have a bias and gathers what changes a row's logits. All threads.
__device__ Modifier make_modifier(const Sample& p, const RowView& view, std::uint32_t* biased) {
  const SampleRow& row = view.row;
  const std::int32_t* mask = row.mask_row >= 0 ? p.masks + static_cast<std::int64_t>(row.mask_row) *
                                                               ((p.vocabulary + 31) / 32)
                                               : nullptr;
  const SampleBias* biases = p.biases + row.bias_begin;
  if (row.bias_count > 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kBiasWords; i += kThreads) biased[i] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < row.bias_count; i += kThreads) {
      const int token = biases[i].token;
      if (token >= 0 && token < p.tokens) atomicOr(&biased[token / 32], 1U << (token % 32));
    }
    __syncthreads();
  }
  return {row,
          biases,
          biased,
          mask,
          view.counts,
          p.tokens,
          row.bias_count == 0 && mask == nullptr && view.counts == nullptr};
}

/// Adds Gumbel noise; the bits of four neighbouring tokens come from one block.
struct Noise {
  std::uint64_t seed;
  std::uint64_t position;
  uint4 bits = make_uint4(0, 0, 0, 0);
  int block = -1;

  __device__ __forceinline__ float add(int id, float logit) {
    if (id / 4 != block) {
      block = id / 4;
      bits = philox(static_cast<std::uint32_t>(block), position, seed);
    }
    const int lane = id % 4;
    return logit + gumbel(lane == 0 ? bits.x : lane == 1 ? bits.y : lane == 2 ? bits.z : bits.w);
  }
};

__device__ void write_choice(const Sample& p, std::int64_t index, int id, std::int32_t* counts) {
  p.ids[index] = id;
  if (id >= 0 && counts != nullptr) ++counts[id];
  if (p.logprobs != nullptr) p.logprobs[index] = 0.0F;
}

__global__ void __launch_bounds__(kThreads)
    draw_kernel(const __grid_constant__ Sample p, int parts) {
  __shared__ std::uint32_t biased[kBiasWords];
  __shared__ Reduction reduction;
  __shared__ float2 result;  // score, id as bits; id -2 = the part holds a NaN
  grid_begin();
  const std::int64_t index = blockIdx.x / static_cast<unsigned>(parts);
  const int part = static_cast<int>(blockIdx.x) % parts;
  const RowView view = row_view(p, index);
  if (view.cut) return;  // the whole cluster
  const Modifier modifier = make_modifier(p, view, biased);
  Noise noise{view.row.seed, static_cast<std::uint64_t>(view.row.output_position)};
  Best best;
  int bad = 0;
  each_logit(
      view.logits, p.tokens,
      [&](int id, float logit) {
        bad |= static_cast<int>(isnan(logit));
        const float value = modifier.apply(logit, id);
        if (value != kOut) best.offer(view.random ? noise.add(id, value) : value, id);
      },
      part, parts);
  bad = __syncthreads_or(bad);
  best = block_best(best, reduction);
  if (bad != 0) best.id = -2;
  if (parts == 1) {
    if (threadIdx.x == 0) write_choice(p, index, max(best.id, -1), view.counts);
    return;
  }
  if (threadIdx.x == 0) result = make_float2(best.score, __int_as_float(best.id));
  cluster_barrier();
  if (part == 0 && threadIdx.x == 0) {
    Best all;
    bool any_bad = false;
    for (int rank = 0; rank < parts; ++rank) {
      const float2 other = cluster_load(shared_address(&result), static_cast<std::uint32_t>(rank));
      const int id = __float_as_int(other.y);
      any_bad = any_bad || id == -2;
      if (id >= 0) all.offer(other.x, id);
    }
    write_choice(p, index, any_bad ? -1 : all.id, view.counts);
  }
  __syncwarp();
  cluster_barrier();  // NOTE: no CTA may leave while another reads its result
}

__global__ void __launch_bounds__(kThreads, 1) cut_kernel(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  grid_begin();
  const std::int64_t index = blockIdx.x;
  const RowView view = row_view(p, index);
  if (!view.cut) return;
  const SampleRow& row = view.row;
  const float* logits = view.logits;
  std::int32_t* counts = view.counts;
  const Modifier modifier = make_modifier(p, view, shared.biased);
  const bool random = view.random;
  const bool cut = random && (row.min_p > 0.0F || row.top_k > 0 || row.top_p < 1.0F);
  const auto maximum = [](float a, float b) { return fmaxf(a, b); };
  Noise noise{row.seed, static_cast<std::uint64_t>(row.output_position)};

  // Pass 1.
  Best best;
  float largest_plain = kOut;
  float largest = kOut;
  int bad = 0;
  each_logit(logits, p.tokens, [&](int id, float logit) {
    bad |= static_cast<int>(isnan(logit));
    largest_plain = fmaxf(largest_plain, logit);
    const float value = modifier.apply(logit, id);
    largest = fmaxf(largest, value);
    if (cut || value == kOut) return;
    best.offer(random ? noise.add(id, value) : value, id);
  });
  bad = block_all(bad, shared.reduce_int, [](int a, int b) { return a | b; });
  if (bad != 0) {
    if (threadIdx.x == 0) write_choice(p, index, -1, nullptr);
    return;
  }

  if (cut) {
    largest = block_all(largest, shared.reduce_float, maximum);
    float threshold = row.min_p > 0.0F ? largest + logf(row.min_p) : kOut;
    const auto each = [&](const auto& use) {
      each_logit(logits, p.tokens, [&](int id, float logit) {
        const float value = modifier.apply(logit, id);
        if (value != kOut && value >= threshold) use(value);
      });
    };
    if (row.top_k > 0 && row.top_k < p.tokens) {
      const auto wanted = static_cast<unsigned long long>(row.top_k);
      threshold = fmaxf(threshold, select_threshold(
                                       shared, largest, [&](unsigned long long) { return wanted; },
                                       each, [](float) { return 1ULL; }));
    }
    if (row.top_p < 1.0F && largest != kOut) {
      const auto share = [&](unsigned long long mass) {
        const auto target = static_cast<unsigned long long>(
            ceil(static_cast<double>(row.top_p) * static_cast<double>(mass)));
        return max(target, 1ULL);
      };
      threshold = fmaxf(threshold, select_threshold(shared, largest, share, each, [&](float value) {
                          return mass_of(value, largest);
                        }));
    }
    each_logit(logits, p.tokens, [&](int id, float logit) {
      const float value = modifier.apply(logit, id);
      if (value != kOut && value >= threshold) best.offer(noise.add(id, value), id);
    });
  }
  best = block_best(best, shared.best);
  if (threadIdx.x == 0) write_choice(p, index, best.id, counts);
  if (best.id < 0 || row.logprobs < 0 || (p.logprobs == nullptr && p.top_ids == nullptr)) return;
  largest_plain = block_all(largest_plain, shared.reduce_float, maximum);
  double sum = 0.0;
  each_logit(logits, p.tokens,
             [&](int, float logit) { sum += static_cast<double>(expf(logit - largest_plain)); });
  sum = block_all(sum, shared.reduce_double, [](double a, double b) { return a + b; });
  const double log_sum = static_cast<double>(largest_plain) + log(sum);
  if (threadIdx.x == 0 && p.logprobs != nullptr)
    p.logprobs[index] = static_cast<float>(static_cast<double>(logits[best.id]) - log_sum);
  if (p.top_ids != nullptr)
    write_top(p, logits, index, min(row.logprobs, min(kSampleTopMax, p.tokens)), log_sum, shared);
}

}  // namespace

cudaError_t launch_sample(const Sample& p, cudaStream_t stream) {
  static const cudaError_t ready =
      cudaFuncSetAttribute(cut_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (ready != cudaSuccess) return ready;
  if (p.vocabulary > 32 * kBiasWords) return cudaErrorInvalidValue;
  const int parts = p.row_count <= 32 ? 8 : p.row_count <= 128 ? 2 : 1;
  LaunchShape shape{dim3(static_cast<unsigned>(p.row_count * parts)), dim3(kThreads)};
  shape.cluster = parts;
  const cudaError_t status = launch_kernel(draw_kernel, shape, stream, p, parts);
  if (status != cudaSuccess) return status;
  return launch_kernel(cut_kernel,
                       {dim3(static_cast<unsigned>(p.row_count)), dim3(kThreads), sizeof(Shared)},
                       stream, p);
}

}  // namespace koho::cuda
