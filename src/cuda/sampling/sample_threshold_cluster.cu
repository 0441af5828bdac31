// SPDX-License-Identifier: Apache-2.0
// Sampling of rows with top_k, top_p, min_p or log-probabilities, without a sort.
//
//   grid     persistent clusters of 8 CTAs: a cluster keeps one row in its shared memory
//   pass 1   biases, penalties, mask and temperature in place; the largest logit
//   pass 2   (top_k, top_p) bins of 1/64 by distance from the largest: how many tokens, or how much
//            probability; the bins of all CTAs are added, and the one with the threshold is found
//   pass 3   the values in that bin are listed and compared with one another; if they are too many,
//            a radix selection over their bits takes 11 bits a round
//   pass 4   the draw over what is kept
//   shared   80 KB of logits, 24 KB of bins and lists; two CTAs an SM
//   bytes    the logits once (once more for log-probabilities)
//
// Measured times and what was tried: docs/kernels/sampling.md.
#include "cuda/device/launch.cuh"
#include "cuda/sampling/sample_logits_processor.cuh"
#include "cuda/sampling/sample_threshold.cuh"

namespace koho::cuda {
namespace {

constexpr int kCluster = 8;
constexpr int kClustersMax = 32;
constexpr int kShardTokens = kSampleTokensMax / kCluster;
constexpr int kDigitBits = 11;
static_assert(kBins == 1 << kDigitBits);
constexpr int kSlice = kBins / kCluster;  // bins that one CTA adds up
constexpr int kListMax = 1024;

struct Shared {
  float logits[kShardTokens];
  Selection selection;          // its bins are this CTA's, then all CTAs'
  std::uint32_t slice[kSlice];  // of all CTAs
  float list[kListMax];         // this CTA's values of the chosen bin
  float all_list[kListMax];     // all CTAs'
  std::uint32_t all_weights[kListMax];
  std::uint32_t biased[kShardTokens / kBiasedTokens];
  BestScratch best;
  double reduce_double[kSampleWarps];
  float reduce_float[kSampleWarps];
  std::uint32_t list_count;
  std::uint32_t leading;  // of the draw
  float2 words[2];        // what a CTA tells the others, in turns
};

template <typename Value, typename Combine>
__device__ __forceinline__ Value block_all(Value value, Value* scratch, const Combine& combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < kSampleWarps; ++warp) value = combine(value, scratch[warp]);
  return value;
}

/// Two floats of every CTA, in rank order; `use(word)` for each. NOTE: words take turns, so that a
/// CTA may still read the last while the next is written. All threads.
template <typename Use>
__device__ __forceinline__ void cluster_words(Shared& shared,
                                              int& turn,
                                              float2 mine,
                                              const Use& use) {
  float2* word = &shared.words[turn];
  turn ^= 1;
  if (threadIdx.x == 0) *word = mine;
  cluster_sync();
  float2 words[kCluster];
#pragma unroll
  for (std::uint32_t rank = 0; rank < kCluster; ++rank)
    words[rank] = cluster_load(shared_address(word), rank);
#pragma unroll
  for (const float2& one : words) use(one);
}

/// Calls `use(value)` for this thread's values that are still kept.
template <typename Use>
__device__ __forceinline__ void each_value(const Shared& shared,
                                           int count,
                                           float threshold,
                                           const Use& use) {
  const auto one = [&](float value) {
    if (value != kMaskedLogit && value >= threshold) use(value);
  };
  for (int at = static_cast<int>(threadIdx.x) * 4; at < count; at += kSampleThreads * 4) {
    const float4 four = *reinterpret_cast<const float4*>(shared.logits + at);
    one(four.x);
    one(four.y);
    one(four.z);
    one(four.w);
  }
}

/// Adds the bins of all CTAs; each then holds the sums. All threads. NOTE: what one round leaves
/// for others to read is written again only after the next round's barriers.
__device__ void add_bins(Shared& shared) {
  const auto rank = cluster_rank();
  const int thread = static_cast<int>(threadIdx.x);
  cluster_sync();
  if (thread == 0) shared.list_count = 0;
  if (thread < kSlice) {
    std::uint32_t words[kCluster];
#pragma unroll
    for (std::uint32_t other = 0; other < kCluster; ++other)
      words[other] = cluster_load_word(
          shared_address(
              &shared.selection.bins[rank * kSlice + static_cast<std::uint32_t>(thread)]),
          other);
    std::uint32_t sum = 0;
#pragma unroll
    for (const std::uint32_t word : words) sum += word;
    shared.slice[thread] = sum;
  }
  cluster_sync();
  std::uint32_t sums[kBinsEach];
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    const int bin = i * kSampleThreads + thread;
    sums[i] = cluster_load_word(shared_address(&shared.slice[bin % kSlice]),
                                static_cast<std::uint32_t>(bin / kSlice));
  }
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) shared.selection.bins[i * kSampleThreads + thread] = sums[i];
  __syncthreads();
}

/// The threshold within the chosen bin by the bits of its values, for a bin of many.
__device__ float threshold_of_bits(
    Shared& shared, const Binning& binning, int bin, int count, float threshold) {
  const std::uint64_t target = shared.selection.target;
  std::uint64_t above = shared.selection.above;
  std::uint32_t prefix = 0;
  int known = 0;
  while (known < 32) {
    const int bits = min(kDigitBits, 32 - known);
    shared.selection.clear();
    each_value(shared, count, threshold, [&](float value) {
      if (binning.bin(value) != bin) return;
      const std::uint32_t key = ordered(value);
      if (known > 0 && key >> (32 - known) != prefix) return;
      const std::uint32_t digit = (key >> (32 - known - bits)) & ((1U << bits) - 1U);
      atomicAdd(&shared.selection.bins[kBins - 1 - digit], binning.weight(value));
    });
    add_bins(shared);
    if (!find_bin(
            shared.selection, above, [&](std::uint64_t) { return target; },
            [&](int) { return binning.scale(bin); }))
      return kMaskedLogit;
    above = shared.selection.above;
    prefix = (known > 0 ? prefix << bits : 0U) |
             static_cast<std::uint32_t>(kBins - 1 - shared.selection.chosen);
    known += bits;
  }
  return unordered(prefix);
}

/// The largest value v such that the weight of all values >= v reaches target_of(the weight of
/// all); kMaskedLogit if it does not. Values below `threshold` are out already. All threads of the
/// cluster.
template <typename Target>
__device__ float select_threshold(
    Shared& shared, const Binning& binning, int count, float threshold, const Target& target_of) {
  Selection& selection = shared.selection;
  selection.clear();
  each_value(shared, count, threshold, [&](float value) {
    atomicAdd(&selection.bins[binning.bin(value)], binning.weight(value));
  });
  add_bins(shared);
  if (!find_bin(selection, 0, target_of, [&](int bin) { return binning.scale(bin); }))
    return kMaskedLogit;
  const int bin = selection.chosen;
  each_value(shared, count, threshold, [&](float value) {
    if (binning.bin(value) != bin) return;
    const std::uint32_t place = atomicAdd(&shared.list_count, 1U);
    if (place < kListMax) shared.list[place] = value;
  });
  cluster_sync();
  std::uint32_t listed[kCluster];
#pragma unroll
  for (std::uint32_t rank = 0; rank < kCluster; ++rank)
    listed[rank] = cluster_load_word(shared_address(&shared.list_count), rank);
  std::uint32_t first = 0;
#pragma unroll
  for (std::uint32_t rank = 0; rank < kCluster; ++rank) {
    for (std::uint32_t i = threadIdx.x; i < listed[rank] && first + i < kListMax;
         i += kSampleThreads)
      shared.all_list[first + i] =
          __uint_as_float(cluster_load_word(shared_address(&shared.list[i]), rank));
    first += listed[rank];
  }
  if (first > kListMax) return threshold_of_bits(shared, binning, bin, count, threshold);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < first; i += kSampleThreads)
    shared.all_weights[i] = binning.weight(shared.all_list[i]);
  __syncthreads();
  return threshold_of_list(selection, shared.all_list, shared.all_weights, static_cast<int>(first),
                           binning.scale(bin));
}

/// Reads this CTA's shard of the row; pads it with -infinity. All threads.
__device__ void load_shard(Shared& shared, const float* logits, int count) {
  const int padded = (count + 3) / 4 * 4;
  if (reinterpret_cast<std::uintptr_t>(logits) % 16 == 0) {
    const std::uint32_t to = shared_address(shared.logits);
    for (int at = static_cast<int>(threadIdx.x) * 4; at < padded; at += kSampleThreads * 4)
      cp_async_16(to + static_cast<std::uint32_t>(at) * 4, logits + at,
                  static_cast<std::uint32_t>(min(count - at, 4)) * 4);
    cp_async_commit_group();
    cp_async_wait_group<0>();
  } else {
    for (int at = static_cast<int>(threadIdx.x); at < count; at += kSampleThreads)
      shared.logits[at] = logits[at];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < padded - count)
    shared.logits[count + static_cast<int>(threadIdx.x)] = kMaskedLogit;
  __syncthreads();
}

/// The best of all CTAs. All threads.
__device__ Best cluster_best(Shared& shared, int& turn, Best best) {
  best = block_best(best, shared.best);
  Best all;
  cluster_words(shared, turn, make_float2(best.score, __int_as_float(best.id)), [&](float2 other) {
    if (__float_as_int(other.y) >= 0) all.offer(other.x, __float_as_int(other.y));
  });
  return all;
}

/// The log-probability of the chosen token and the largest unmodified logits in order, ties to the
/// lower id. All threads of the cluster.
__device__ void write_logprobs(const Sample& p,
                               Shared& shared,
                               int& turn,
                               const RowView& view,
                               std::int64_t index,
                               int first,
                               int count,
                               int chosen) {
  load_shard(shared, view.logits + first, count);
  const auto maximum = [](float a, float b) { return fmaxf(a, b); };
  float largest = kMaskedLogit;
  each_value(shared, count, kMaskedLogit, [&](float value) { largest = fmaxf(largest, value); });
  largest = block_all(largest, shared.reduce_float, maximum);
  cluster_words(shared, turn, make_float2(largest, 0.0F),
                [&](float2 other) { largest = fmaxf(largest, other.x); });
  double sum = 0.0;
  each_value(shared, count, kMaskedLogit,
             [&](float value) { sum += static_cast<double>(expf(value - largest)); });
  sum = block_all(sum, shared.reduce_double, [](double a, double b) { return a + b; });
  const auto high = static_cast<float>(sum);
  const auto low = static_cast<float>(sum - static_cast<double>(high));
  sum = 0.0;
  cluster_words(shared, turn, make_float2(high, low), [&](float2 other) {
    sum += static_cast<double>(other.x) + static_cast<double>(other.y);
  });
  const double log_sum = static_cast<double>(largest) + log(sum);
  const bool writes = cluster_rank() == 0 && threadIdx.x == 0;
  if (writes && p.logprobs != nullptr)
    p.logprobs[index] = static_cast<float>(static_cast<double>(view.logits[chosen]) - log_sum);
  if (p.top_ids == nullptr) return;
  const int wanted = min(view.row.logprobs, min(kTopLogprobsMax, p.tokens));
  Best last;  // the one before
  last.score = INFINITY;
  for (int i = 0; i < wanted; ++i) {
    Best best;
    for (int at = static_cast<int>(threadIdx.x); at < count; at += kSampleThreads) {
      const float logit = shared.logits[at];
      const int id = first + at;
      if (logit < last.score || (logit == last.score && id > last.id)) best.offer(logit, id);
    }
    best = cluster_best(shared, turn, best);
    if (writes) {
      p.top_ids[index * kTopLogprobsMax + i] = best.id;
      p.top_logprobs[index * kTopLogprobsMax + i] =
          static_cast<float>(static_cast<double>(best.score) - log_sum);
    }
    last = best;
  }
}

/// Draws among the tokens of this CTA that are not below the threshold. All threads.
__device__ __forceinline__ void draw_shard(
    const Shared& shared, Drawing& drawing, int first, int count, float threshold) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto value_of = [&](int id) {
    const int at = id - first;
    const float value = at < count ? shared.logits[at] : kMaskedLogit;
    return value < threshold ? kMaskedLogit : value;
  };
  const int begin = static_cast<int>(threadIdx.x) / 32 * kBlockTokens;
  drawing.open(first + begin, value_of);
  __syncthreads();
  for (int block = begin; block < count; block += kBlocksStep) {
    float most = kMaskedLogit;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) {
      const int at = block + i * kVectorStep + lane * 4;
      if (at >= count) continue;
      const float4 four = *reinterpret_cast<const float4*>(shared.logits + at);
      most = fmaxf(most, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
    }
    bool may_win = false;
    if (!(most < threshold)) {
      const RaceDraw race =
          race_bits(race_group(first + block + lane * 4), drawing.position, drawing.seed);
      may_win = drawing.may_win(race.bits, most, kLog2E, drawing.lead());
    }
    const std::uint32_t groups = __ballot_sync(0xFFFFFFFFU, may_win);
    if (groups != 0) drawing.take(groups, first + block, value_of);
  }
}

/// One row. All threads of the cluster.
__device__ void sample_row(
    const Sample& p, Shared& shared, int& turn, const RowView& view, std::int64_t index) {
  const SamplingRow& row = view.row;
  const int each = shard_tokens(p.tokens, kCluster);
  const int first = min(static_cast<int>(cluster_rank()) * each, p.tokens);
  const int count = min(each, p.tokens - first);
  load_shard(shared, view.logits + first, count);
  const LogitsProcessor processor = make_logits_processor(p, view, shared.biased, first, each);
  const bool writes = cluster_rank() == 0 && threadIdx.x == 0;

  // Pass 1.
  if (!processor.plain) {
    for (int block = static_cast<int>(threadIdx.x) / 32 * kBlockTokens; block < count;
         block += kBlocksStep) {
      const std::uint32_t counted = processor.counted(first + block);
      processor.change(shared.logits + block, first + block, counted,
                       processor.first_count(first + block, counted));
    }
    __syncthreads();
  }
  float largest = kMaskedLogit;
  bool bad = false;
  const bool tempers = view.random && row.temperature != 1.0F;
  for (int at = static_cast<int>(threadIdx.x) * 4; at < count; at += kSampleThreads * 4) {
    float4 four = *reinterpret_cast<const float4*>(shared.logits + at);
    bad |= isnan(max_or_nan(four));
    if (processor.mask != nullptr) four = processor.masked(four, first + at);
    if (tempers)
      four = make_float4(processor.apply_temperature(four.x), processor.apply_temperature(four.y),
                         processor.apply_temperature(four.z), processor.apply_temperature(four.w));
    if (tempers || processor.mask != nullptr) *reinterpret_cast<float4*>(shared.logits + at) = four;
    largest = fmaxf(largest, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
  }
  largest = block_all(largest, shared.reduce_float, [](float a, float b) { return fmaxf(a, b); });
  bad = __syncthreads_or(static_cast<int>(bad)) != 0;
  cluster_words(shared, turn, make_float2(largest, bad ? 1.0F : 0.0F), [&](float2 other) {
    largest = fmaxf(largest, other.x);
    bad |= other.y != 0.0F;
  });
  if (bad || largest == kMaskedLogit) {
    if (writes) write_sampled(p, index, -1, view);
    return;
  }

  // The thresholds, each among what the last one has kept.
  float threshold = kMaskedLogit;
  if (view.random) {
    if (row.min_p > 0.0F) threshold = largest + logf(row.min_p);
    const float top = bin_middle(largest);
    const auto top_k = [&](std::uint64_t) { return static_cast<std::uint64_t>(row.top_k); };
    const auto top_p = [&](std::uint64_t all) { return top_p_target(row.top_p, all); };
    if (row.top_k > 0 && row.top_k < p.tokens)
      threshold = fmaxf(threshold, select_threshold(shared, {top, false}, count, threshold, top_k));
    if (row.top_p < 1.0F)
      threshold = fmaxf(threshold, select_threshold(shared, {top, true}, count, threshold, top_p));
  }

  // Values have been divided already.
  Drawing drawing{row.seed, static_cast<std::uint64_t>(row.output_position), &shared.leading, {}};
  if (view.random) {
    if (threadIdx.x == 0) shared.leading = ordered(kMaskedLogit);
    __syncthreads();
    draw_shard(shared, drawing, first, count, threshold);
  } else {
    constexpr int kStep = kSampleThreads * 4;
    for (int at = static_cast<int>(threadIdx.x) * 4; at < count; at += kStep) {
      const float4 four = *reinterpret_cast<const float4*>(shared.logits + at);
      drawing.best.offer(four.x, first + at);
      drawing.best.offer(four.y, first + at + 1);
      drawing.best.offer(four.z, first + at + 2);
      drawing.best.offer(four.w, first + at + 3);
    }
  }
  const Best best = cluster_best(shared, turn, drawing.best);
  if (writes) write_sampled(p, index, best.id, view);
  if (best.id >= 0 && row.logprobs >= 0 && (p.logprobs != nullptr || p.top_ids != nullptr))
    write_logprobs(p, shared, turn, view, index, first, count, best.id);
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_threshold_cluster_kernel(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  // NOTE: no wait here unless rows were streamed: sample_gumbel_max.cu, the previous kernel, has
  // other rows and waited for the logits itself.
  if (p.streamed) wait_on_dependent_grids();
  const auto mine = [&p](std::int64_t index) {
    return row_view(p, index).has_thresholds && (!p.streamed || p.ids[index] == kSampleDeferred);
  };
  const std::int64_t clusters = gridDim.x / kCluster;
  const std::int64_t first = blockIdx.x / kCluster;
  bool any = false;
  for (std::int64_t i = threadIdx.x; first + i * clusters < p.row_count; i += kSampleThreads)
    any |= mine(first + i * clusters);
  int turn = 0;
  if (__syncthreads_or(static_cast<int>(any)) != 0) {
    for (std::int64_t index = first; index < p.row_count; index += clusters) {
      if (mine(index)) sample_row(p, shared, turn, row_view(p, index), index);
    }
    cluster_sync();  // NOTE: no CTA may leave while another reads its memory
  }
  pdl_begin();
}

}  // namespace

cudaError_t launch_sample_threshold_cluster(const Sample& p, cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once(
      [] { return allow_dynamic_shared_memory(sample_threshold_cluster_kernel, sizeof(Shared)); });
  if (ready != cudaSuccess) return ready;
  const std::int64_t clusters = p.row_count < kClustersMax ? p.row_count : kClustersMax;
  return launch_kernel(sample_threshold_cluster_kernel,
                       {dim3(static_cast<unsigned>(clusters * kCluster)), dim3(kSampleThreads),
                        sizeof(Shared), kCluster},
                       stream, p);
}

const void* kernel_of::sample_threshold_cluster() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
