// SPDX-License-Identifier: Apache-2.0
// Sampling of rows without thresholds: greedy, temperature, penalties, biases and masks in one pass
// over the logits.
//
//   grid     (rows, parts): a cluster of `parts` CTAs a row, neighbouring tokens each
//   block    a warp takes 512 tokens at a time, 16 a lane; three such under way in shared memory
//   draw     the race of sampling/philox.h: a lane draws its group's earliest time, and only groups
//            that may win with it are looked at token by token
//   counts   a block ahead in registers
//   bytes    the logits once, the counts once under penalties
//
// The best of all tokens does not depend on how they are divided.
#include "cuda/launch.cuh"
#include "cuda/sample.cuh"

namespace koho::cuda {
namespace {

constexpr int kPartsMax = 8;
constexpr int kPartsMin = 2;
constexpr int kPartTokensMax = kSampleTokensMax / kPartsMin;

constexpr int kStages = 3;

struct Shared {
  float ring[kStages][kSampleWarps][kBlockTokens];
  std::uint32_t biased[kPartTokensMax / 32];
  BestScratch best;
  std::uint32_t leading;
  std::uint64_t barrier;
  float2 results[kPartsMax];  // of all parts, to the first: score, id as bits; -2 = it holds a NaN
};

/// A part of a row.
struct Part {
  const RowView& view;
  const Modifier& modifier;
  int begin;
  int end;
  bool vectors;  // logits and counts are read by vectors, whole ones even at the row's end

  /// This lane's tokens of a block to shared memory.
  __device__ __forceinline__ void fetch(float* to, int block) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) {
      const int at = i * kVectorStep + lane * 4;
      if (block + at >= end) continue;
      if (vectors)
        copy_16(shared_address(to + at), view.logits + block + at, 16);
      else
        for (int j = 0; j < 4 && block + at + j < end; ++j)
          to[at + j] = view.logits[block + at + j];
    }
    copy_commit();
  }
  /// Four tokens of a block; -infinity behind the end.
  __device__ __forceinline__ float4 vector(const float* block, int at, int id) const {
    if (id + 4 <= end) return *reinterpret_cast<const float4*>(block + at);
    const auto one = [&](int i) { return id + i < end ? block[at + i] : kOut; };
    return make_float4(one(0), one(1), one(2), one(3));
  }
  __device__ __forceinline__ int4 counts(int id) const {
    if (vectors)
      return id < end ? *reinterpret_cast<const int4*>(view.counts + id) : make_int4(0, 0, 0, 0);
    const auto one = [&](int i) { return id + i < end ? view.counts[id + i] : 0; };
    return make_int4(one(0), one(1), one(2), one(3));
  }
  /// What four tokens' logits become.
  __device__ __forceinline__ float4 changed(const float4& v, int id, const int4& count) const {
    if (id >= end) return v;
    if (modifier.biased_bits(id) != 0 || (count.x | count.y | count.z | count.w) != 0) {
      const auto one = [&](float value, int i, int times) {
        return id + i < end ? modifier.adjust(value, id + i, times) : kOut;
      };
      return make_float4(one(v.x, 0, count.x), one(v.y, 1, count.y), one(v.z, 2, count.z),
                         one(v.w, 3, count.w));
    }
    if (modifier.mask == nullptr) return v;
    const std::uint32_t allowed = modifier.allowed_bits(id);
    return make_float4((allowed & 1U) != 0 ? v.x : kOut, (allowed & 2U) != 0 ? v.y : kOut,
                       (allowed & 4U) != 0 ? v.z : kOut, (allowed & 8U) != 0 ? v.w : kOut);
  }
};

/// This warp's share of a part: every sixteenth block of 512 tokens. With `kRace`, groups that may
/// win are taken token by token; otherwise every value counts as it is.
template <bool kRace, bool kPlain>
__device__ __forceinline__ void scan(const Part& part,
                                     float (&ring)[kStages][kSampleWarps][kBlockTokens],
                                     Drawing& drawing,
                                     bool& bad) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Modifier& modifier = part.modifier;
  const bool reads_counts = !kPlain && modifier.counts != nullptr;
  const float scale = kLog2E / modifier.temperature;  // of draws
  int block = part.begin + warp * kBlockTokens;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage)
    part.fetch(ring[stage][warp], block + stage * kBlocksStep);
  int4 counts[kPlain ? 1 : kGroupVectors];
  const auto fetch_counts = [&](int i, int id) {
    if constexpr (!kPlain) counts[i] = reads_counts ? part.counts(id) : make_int4(0, 0, 0, 0);
  };
#pragma unroll
  for (int i = 0; i < kGroupVectors; ++i) fetch_counts(i, block + i * kVectorStep + lane * 4);
  float* here = ring[0][warp];
  const auto value_of = [&](int id) {
    if (id >= part.end) return kOut;
    float value = here[id - block];
    if constexpr (!kPlain)
      value = modifier.adjust(value, id, modifier.counts != nullptr ? modifier.counts[id] : 0);
    return modifier.temper(value);
  };
  if constexpr (kRace) {
    copy_wait<kStages - 1>();
    __syncwarp();
    drawing.open(block, value_of);
    __syncthreads();
  }
  int stage = 0;
#pragma unroll 1
  for (; block < part.end; block += kBlocksStep) {
    copy_wait<kStages - 1>();
    here = ring[stage][warp];
    float most = kOut;
#pragma unroll
    for (int i = 0; i < kGroupVectors; ++i) {
      const int at = i * kVectorStep + lane * 4;
      float4 now = part.vector(here, at, block + at);
      if constexpr (!kPlain) {
        bad |= isnan(max_or_nan(now));
        now = part.changed(now, block + at, counts[i]);
        fetch_counts(i, block + at + kBlocksStep);
      }
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
    if constexpr (kPlain) bad |= isnan(most);
    if constexpr (kRace) {
      Race races[1];
      const std::uint32_t numbers[1] = {race_group(block + lane * 4)};
      race_draw(races, numbers, drawing.position, drawing.seed);
      const bool may_win = drawing.may_win(races[0].bits, most, scale, drawing.lead());
      const std::uint32_t groups = __ballot_sync(0xFFFFFFFFU, may_win);
      if (groups != 0) {
        __syncwarp();
        drawing.take(groups, block, value_of);
        __syncwarp();
      }
    }
    part.fetch(here, block + kStages * kBlocksStep);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_draw_kernel(const __grid_constant__ Sample p, int parts) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const std::uint32_t barrier = shared_address(&shared.barrier);
  if (threadIdx.x == 0) {
    shared.leading = ordered(kOut);
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(parts) * sizeof(float2));
  }
  __syncthreads();
  cluster_arrive();
  grid_begin();
  const std::int64_t index = blockIdx.x / static_cast<unsigned>(parts);
  const int rank = static_cast<int>(blockIdx.x) % parts;
  const RowView view = row_view(p, index);
  if (view.cut) {  // the whole cluster
    cluster_wait();
    return;
  }
  const int each = part_tokens(p.tokens, parts);
  const int begin = min(rank * each, p.tokens);
  const Modifier modifier = make_modifier(p, view, shared.biased, begin, each);
  const SampleRow& row = view.row;
  const Part part{view, modifier, begin, min(begin + each, p.tokens),
                  p.vocabulary % 4 == 0 &&
                      reinterpret_cast<std::uintptr_t>(view.logits) % 16 == 0 &&
                      reinterpret_cast<std::uintptr_t>(view.counts) % 16 == 0};
  Drawing drawing{row.seed, static_cast<std::uint64_t>(row.output_position), &shared.leading, {}};
  bool bad = false;
  if (modifier.plain) {
    if (view.random)
      scan<true, true>(part, shared.ring, drawing, bad);
    else
      scan<false, true>(part, shared.ring, drawing, bad);
  } else {
    if (view.random)
      scan<true, false>(part, shared.ring, drawing, bad);
    else
      scan<false, false>(part, shared.ring, drawing, bad);
  }
  bad = __syncthreads_or(static_cast<int>(bad)) != 0;
  const Best best = block_best(drawing.best, shared.best);
  cluster_wait();  // every CTA has begun
  if (threadIdx.x != 0) return;
  const std::uint32_t there = cluster_address(shared_address(&shared.results[rank]), 0);
  const std::uint32_t counted = cluster_address(barrier, 0);
  cluster_send(there, best.score, counted);
  cluster_send(there + sizeof(float), __int_as_float(bad ? -2 : best.id), counted);
  if (rank != 0) return;
  mbarrier_wait_cluster(barrier, 0);
  Best all;
  for (int other = 0; other < parts; ++other) {
    const float2 result = shared.results[other];
    const int id = __float_as_int(result.y);
    bad |= id == -2;
    if (id >= 0) all.offer(result.x, id);
  }
  write_choice(p, index, bad ? -1 : all.id, view.counts);
}

}  // namespace

cudaError_t launch_sample_draw(const Sample& p, cudaStream_t stream) {
  static const cudaError_t ready = use_shared_memory(sample_draw_kernel, sizeof(Shared));
  if (ready != cudaSuccess) return ready;
  const int parts = p.row_count <= 32 ? kPartsMax : p.row_count <= 64 ? 4 : kPartsMin;
  LaunchShape shape{dim3(static_cast<unsigned>(p.row_count * parts)), dim3(kSampleThreads),
                    sizeof(Shared)};
  shape.cluster = parts;
  return launch_kernel(sample_draw_kernel, shape, stream, p, parts);
}

cudaError_t launch_sample(const Sample& p, cudaStream_t stream) {
  if (p.vocabulary > kSampleTokensMax) return cudaErrorInvalidValue;
  cudaError_t status = launch_sample_draw(p, stream);
  if (status != cudaSuccess) return status;
  Sample rest = p;
  rest.streamed = p.row_count >= kSampleStreamRows;
  if (rest.streamed) status = launch_sample_stream(rest, stream);
  return status != cudaSuccess ? status : launch_sample_cut(rest, stream);
}

}  // namespace koho::cuda
