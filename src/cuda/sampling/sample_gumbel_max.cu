// SPDX-License-Identifier: Apache-2.0
// Sampling of rows without thresholds: greedy, temperature, penalties, biases and masks in one pass
// over the logits, by Gumbel-max.
//
//   grid     a cluster of `cluster_size` CTAs a row, a contiguous shard of the vocabulary each
//   block    a warp takes blocks of 512 tokens, 16 a lane; three are in flight in shared memory
//   draw     a lane draws the random bits of its group of 16 (sampling/philox.h); only groups that
//            may win with them add noise token by token
//   changes  biases, penalties and masks in shared memory, by the lane that has the group; bitmaps,
//            prefetched by two blocks, tell which tokens have counts, and only those counts are
//            read
//   bytes    the logits once; under penalties 16 bits more for 16 tokens, and the counts
//
// The best of all tokens does not depend on how the row is divided. Measured times and what was
// tried: docs/kernels/sampling.md.
#include "cuda/device/launch.cuh"
#include "cuda/sampling/sample_logits_processor.cuh"

namespace koho::cuda {
namespace {

constexpr int kClusterMax = 8;
constexpr int kClusterMin = 1;
constexpr int kShardTokensMax = kSampleTokensMax / kClusterMin;
constexpr std::int64_t kAlone = 264;  // rows that an H200 holds at once, a CTA each (132 SMs)

constexpr int kStages = 3;

struct Shared {
  float ring[kStages][kSampleWarps][kBlockTokens];
  std::uint32_t biased[kShardTokensMax / kBiasedTokens];
  BestScratch best;
  std::uint32_t leading;
  std::uint64_t barrier;
  float2
      results[kClusterMax];  // of all shards, in the first CTA: score, bits of the id; -2 = a NaN
};

/// A shard of a row.
struct VocabularyShard {
  const RowView& view;
  const LogitsProcessor& processor;
  int begin;
  int end;
  bool vectors;  // logits are aligned for 16-byte reads, also at the row's end

  /// Starts copying this lane's group of a block to shared memory.
  __device__ __forceinline__ void fetch(float* to, int block) const {
    const int first = static_cast<int>(threadIdx.x) % 32 * 4;
    if (vectors) {
      const float* from = view.logits + block + first;
      const std::uint32_t there = shared_address(to + first);
#pragma unroll
      for (int i = 0; i < kGroupVectors; ++i)
        if (block + first + i * kVectorStep < end)
          cp_async_16(there + i * kVectorStep * 4, from + i * kVectorStep, 16);
    } else {
#pragma unroll 1
      for (int member = 0; member < kGroupTokens; ++member) {
        const int at = block_token(first / 4, member);
        if (block + at < end) to[at] = view.logits[block + at];
      }
    }
    cp_async_commit_group();
  }
  /// Writes -infinity behind the shard's end in a block that begins before it.
  __device__ __forceinline__ void pad(float* to, int block) const {
    if (block >= end || block + kBlockTokens <= end) return;
#pragma unroll 1
    for (int member = 0; member < kGroupTokens; ++member) {
      const int at = block_token(static_cast<int>(threadIdx.x) % 32, member);
      if (block + at >= end) to[at] = kMaskedLogit;
    }
  }
};

/// Masks this lane's group of the block at `here`; `bad` if it holds a NaN.
__device__ __forceinline__ void mask_group(const VocabularyShard& shard,
                                           float* const& here,
                                           const int& block,
                                           const int& lane,
                                           bool& bad) {
#pragma unroll 1
  for (int i = 0; i < kGroupVectors; ++i) {
    const int at = i * kVectorStep + lane * 4;
    if (block + at >= shard.end) continue;
    float4& four = *reinterpret_cast<float4*>(here + at);
    bad |= isnan(max_or_nan(four));
    four = shard.processor.masked(four, block + at);
  }
}

/// Scans this warp's share of a shard: every sixteenth block of 512 tokens. kRace: draws; else
/// takes the largest. kPlain: nothing but temperature changes the logits.
template <bool kRace, bool kPlain>
__device__ __forceinline__ void scan(const VocabularyShard& shard,
                                     float (&ring)[kStages][kSampleWarps][kBlockTokens],
                                     Drawing& drawing,
                                     bool& bad) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const LogitsProcessor& processor = shard.processor;
  const float scale = kLog2E / processor.temperature;  // of draws
  int block = shard.begin + warp * kBlockTokens;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage)
    shard.fetch(ring[stage][warp], block + stage * kBlocksStep);
  // Which tokens of the next block have counts, the first such count, and which of the block after
  // it.
  const auto counted_of = [&](int at) { return at < shard.end ? processor.counted(at) : 0U; };
  std::uint32_t counted = 0;
  std::uint32_t counted_behind = 0;
  std::int32_t count = 0;
  if constexpr (!kPlain) {
    counted = counted_of(block);
    counted_behind = counted_of(block + kBlocksStep);
    count = processor.first_count(block, counted);
  }
  float* here = ring[0][warp];
  const auto value_of = [&](int id) {
    return id < shard.end ? processor.apply_temperature(here[id - block]) : kMaskedLogit;
  };
  /// Waits for the block and changes its tokens.
  const auto begin_block = [&] {
    cp_async_wait_group<kStages - 1>();
    shard.pad(here, block);
    if constexpr (!kPlain) {
      if (block >= shard.end) return;
      processor.change(here, block, counted, count);
      counted = counted_behind;
      counted_behind = counted_of(block + 2 * kBlocksStep);
      count = processor.first_count(block + kBlocksStep, counted);
      if (processor.mask == nullptr) return;
      mask_group(shard, here, block, lane, bad);
    }
  };
  begin_block();
  if constexpr (kRace) {
    __syncwarp();
    drawing.open(block, value_of);
    __syncthreads();
  }
  int stage = 0;
#pragma unroll 1
  while (block < shard.end) {
    float most = kMaskedLogit;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) {
      const int at = i * kVectorStep + lane * 4;
      const float4 now = *reinterpret_cast<const float4*>(here + at);
      most = max_or_nan(most, max_or_nan(now));
      if constexpr (!kRace) {
        const auto offer = [&](int j, float value) {  // ids rise: the first of equals stays
          if (value > drawing.best.score) {
            drawing.best.score = value;
            drawing.best.id = block + at + j;
          }
        };
        offer(0, now.x);
        offer(1, now.y);
        offer(2, now.z);
        offer(3, now.w);
      }
    }
    bad |= isnan(most);
    if constexpr (kRace) {
      const RaceDraw race = race_bits(race_group(block + lane * 4), drawing.position, drawing.seed);
      const bool may_win = drawing.may_win(race.bits, most, scale, drawing.lead());
      const std::uint32_t groups = __ballot_sync(0xFFFFFFFFU, may_win);
      if (groups != 0) {
        __syncwarp();
        drawing.take(groups, block, value_of);
        __syncwarp();
      }
    }
    shard.fetch(here, block + kStages * kBlocksStep);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    here = ring[stage][warp];
    block += kBlocksStep;
    begin_block();
  }
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_gumbel_max_kernel(const __grid_constant__ Sample p, int cluster_size) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const std::uint32_t barrier = shared_address(&shared.barrier);
  if (threadIdx.x == 0) {
    shared.leading = ordered(kMaskedLogit);
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, static_cast<std::uint32_t>(cluster_size) * sizeof(float2));
  }
  __syncthreads();
  cluster_arrive();
  pdl_begin();
  const std::int64_t index = blockIdx.x / static_cast<unsigned>(cluster_size);
  const int rank = static_cast<int>(blockIdx.x) % cluster_size;
  const RowView view = row_view(p, index);
  if (view.has_thresholds) {  // the whole cluster
    cluster_wait();
    return;
  }
  const int each = shard_tokens(p.tokens, cluster_size);
  const int begin = min(rank * each, p.tokens);
  const LogitsProcessor processor = make_logits_processor(p, view, shared.biased, begin, each);
  const SamplingRow& row = view.row;
  const VocabularyShard shard{
      view, processor, begin, min(begin + each, p.tokens),
      p.vocabulary % 4 == 0 && reinterpret_cast<std::uintptr_t>(view.logits) % 16 == 0};
  Drawing drawing{row.seed, static_cast<std::uint64_t>(row.output_position), &shared.leading, {}};
  bool bad = false;
  if (processor.plain) {
    if (view.random)
      scan<true, true>(shard, shared.ring, drawing, bad);
    else
      scan<false, true>(shard, shared.ring, drawing, bad);
  } else {
    if (view.random)
      scan<true, false>(shard, shared.ring, drawing, bad);
    else
      scan<false, false>(shard, shared.ring, drawing, bad);
  }
  bad = __syncthreads_or(static_cast<int>(bad)) != 0;
  const Best best = block_best(drawing.best, shared.best);
  cluster_wait();  // every CTA has begun
  if (threadIdx.x != 0) return;
  if (cluster_size == 1) {
    write_sampled(p, index, bad ? -1 : best.id, view);
    return;
  }
  const std::uint32_t there = map_shared_rank(shared_address(&shared.results[rank]), 0);
  const std::uint32_t counted = map_shared_rank(barrier, 0);
  st_async(there, best.score, counted);
  st_async(there + sizeof(float), __int_as_float(bad ? -2 : best.id), counted);
  if (rank != 0) return;
  mbarrier_wait_cluster(barrier, 0);
  Best all;
  for (int other = 0; other < cluster_size; ++other) {
    const float2 result = shared.results[other];
    const int id = __float_as_int(result.y);
    bad |= id == -2;
    if (id >= 0) all.offer(result.x, id);
  }
  write_sampled(p, index, bad ? -1 : all.id, view);
}

}  // namespace

cudaError_t launch_sample_gumbel_max(const Sample& p, cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once(
      [] { return allow_dynamic_shared_memory(sample_gumbel_max_kernel, sizeof(Shared)); });
  if (ready != cudaSuccess) return ready;
  const int cluster_size = p.row_count <= 32                            ? kClusterMax
                           : p.row_count <= 64                          ? 4
                           : p.row_count <= 128 || p.row_count > kAlone ? 2
                                                                        : kClusterMin;
  LaunchShape shape{dim3(static_cast<unsigned>(p.row_count * cluster_size)), dim3(kSampleThreads),
                    sizeof(Shared)};
  shape.cluster = cluster_size;
  return launch_kernel(sample_gumbel_max_kernel, shape, stream, p, cluster_size);
}

const void* kernel_of::sample_gumbel_max() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
