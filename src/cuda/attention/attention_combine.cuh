// SPDX-License-Identifier: Apache-2.0
// What attention_combine.cu and attention_combine_many.cu share: which clusters combine a row, and
// how threads add its partial sums to the row's eight accumulators.
#pragma once

#include "cuda/attention/attention_split_kv.cuh"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {

constexpr int kCluster = 8;
constexpr int kClusterMax = 16;  // of few rows
constexpr int kVector = 4;
constexpr int kThreadsMax = 768;

/// Columns of one CTA: whole quantisation blocks.
constexpr int columns_of_cta(int width, int cluster) {
  return ((width + cluster - 1) / cluster + kQuantColumns - 1) / kQuantColumns * kQuantColumns;
}

static_assert(columns_of_cta(kCombineWidthMax, kCluster) / kVector <= kThreadsMax);
/// Warps that write a row.
constexpr int kRowWarpsMax = kCombineWidthMax / kVector / 32 + kClusterMax;
static_assert(kQuantColumns == 32 * kVector);  // a warp has whole blocks

/// Bytes of one accumulator of a thread.
constexpr int kSlotBytes = (kVector + 2) * static_cast<int>(sizeof(float));

/// Whether all `ctas` of `threads` are resident at once. An eighth of the SMs is left out, since
/// the CTAs of a cluster must lie on SMs of one GPC.
inline bool are_resident(const Attention& p, std::int64_t ctas, int threads) {
  constexpr int kRegisters = 65536 / kThreadsMax / 8 * 8;  // that a thread may have
  return ctas <= 65536 / (kRegisters * threads) * (p.multiprocessors - p.multiprocessors / 8);
}

/// CTAs of a row where rows are many: fewer than kCluster if some of these would have no columns,
/// or not all be resident at once.
inline int cluster_of_many(const Attention& p, std::int64_t rows, int width) {
  constexpr int kLeast = 2;
  int cluster = kCluster;
  while (cluster > kLeast) {
    const int columns = columns_of_cta(width, cluster);
    const bool suits =
        columns * cluster < width + columns && are_resident(p, rows * cluster, columns / kVector);
    if (suits || columns_of_cta(width, cluster / 2) / kVector > kThreadsMax / 2) break;
    cluster /= 2;
  }
  return cluster;
}

/// launch_attention_combine() for has_many_contexts().
cudaError_t launch_attention_combine_many(const RowOutputs& out,
                                          const Attention& p,
                                          std::int64_t rows,
                                          cudaStream_t stream);

struct Sums {
  float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  SoftmaxState state;

  __device__ __forceinline__ void add(const float4& more, const SoftmaxState& more_state) {
    const float2 factor = combine(state, more_state);
    v.x = combine_sum(v.x, more.x, factor);
    v.y = combine_sum(v.y, more.y, factor);
    v.z = combine_sum(v.z, more.z, factor);
    v.w = combine_sum(v.w, more.w, factor);
  }
};

/// Where a thread's columns and their row's state lie in a work tile.
struct PartialLayout {
  const float* first;
  std::uint32_t work_tile;  // floats from one of the row's work tiles to the next
  int sums;
  int state;
};

struct Partial {
  float4 sums;
  float2 state;
};

__device__ __forceinline__ Partial load_partial(const PartialLayout& place, int index) {
  const float* work_tile = place.first + static_cast<std::uint32_t>(index) * place.work_tile;
  return {__ldcg(reinterpret_cast<const float4*>(work_tile + place.sums)),
          __ldcg(reinterpret_cast<const float2*>(work_tile + place.state))};
}

/// A thread's share of the segments, and the accumulators of its columns in shared memory.
struct Accumulators {
  float* at;
  int threads;  // of all columns
  int sharer;   // its segments are sharer, sharer + sharers, …
  int sharers;

  __device__ __forceinline__ void put(int index, const Sums& sums) const {
    float* to = at + index * (kVector + 2) * threads;
    to[0] = sums.v.x;
    to[threads] = sums.v.y;
    to[2 * threads] = sums.v.z;
    to[3 * threads] = sums.v.w;
    to[4 * threads] = sums.state.largest;
    to[5 * threads] = sums.state.total;
  }
  __device__ __forceinline__ Sums get(int index) const {
    const float* from = at + index * (kVector + 2) * threads;
    Sums sums;
    sums.v = make_float4(from[0], from[threads], from[2 * threads], from[3 * threads]);
    sums.state = {from[4 * threads], from[5 * threads]};
    return sums;
  }
  /// Adds the sums of the row's segment `segment` to its accumulator.
  __device__ __forceinline__ void add(int segment,
                                      const float4& v,
                                      const SoftmaxState& state) const {
    Sums sums;
    if (segment >= kCombineAccumulators) sums = get(segment % kCombineAccumulators);
    sums.add(v, state);
    put(segment % kCombineAccumulators, sums);
  }
};

/// Some of a row's work tiles, `first` to `first + count`: kEach to a segment, but fewer to the
/// last.
struct WorkTileRun {
  int first;
  int count;
  int segment;  // of the first
};

/// Adds this thread's segments among them to their accumulators; kPrefetch loads are in flight at a
/// time.
template <int kEach, int kPrefetch>
__device__ __forceinline__ void add_work_tiles(const Accumulators& accumulators,
                                               const PartialLayout& place,
                                               const WorkTileRun& run) {
  constexpr int kSegmentsPrefetched = kPrefetch / kEach;
  static_assert(kPrefetch % kEach == 0);
  const int sharers = accumulators.sharers;
  int segment = run.segment + ((accumulators.sharer - run.segment) & (sharers - 1));
  int at = (segment - run.segment) * kEach;
#pragma unroll 1
  for (; at < run.count; segment += kSegmentsPrefetched * sharers, at += kPrefetch * sharers) {
    Partial partials[kSegmentsPrefetched][kEach]{};
#pragma unroll
    for (int i = 0; i < kSegmentsPrefetched; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (const int index = at + i * kEach * sharers + j; index < run.count)
          partials[i][j] = load_partial(place, run.first + index);
#pragma unroll
    for (int i = 0; i < kSegmentsPrefetched; ++i) {
      const int index = at + i * kEach * sharers;
      if (index >= run.count) break;
      const auto state = [&](int j) {
        return SoftmaxState{partials[i][j].state.x, partials[i][j].state.y};
      };
      if constexpr (kEach == 1) {
        accumulators.add(segment + i * sharers, partials[i][0].sums, state(0));
      } else {
        Sums sums;
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          if (index + j < run.count) sums.add(partials[i][j].sums, state(j));
        accumulators.add(segment + i * sharers, sums.v, sums.state);
      }
    }
  }
}

/// The sums of chunk `chunk` of a row with `kv_tiles` work tiles, `each` a chunk.
__device__ __forceinline__ Sums combine_kv_tiles(const PartialLayout& place,
                                                 int chunk,
                                                 int each,
                                                 int kv_tiles) {
  constexpr int kKvTilesPrefetched = 4;
  const int end = min(kv_tiles, (chunk + 1) * each);
  Sums sums;
#pragma unroll 1
  for (int at = chunk * each; at < end; at += kKvTilesPrefetched) {
    Partial partials[kKvTilesPrefetched]{};
#pragma unroll
    for (int i = 0; i < kKvTilesPrefetched; ++i)
      if (at + i < end) partials[i] = load_partial(place, at + i);
#pragma unroll
    for (int i = 0; i < kKvTilesPrefetched; ++i)
      if (at + i < end) sums.add(partials[i].sums, {partials[i].state.x, partials[i].state.y});
  }
  return sums;
}

/// A row whose work tiles are KV tiles, and how they make chunks and segments.
struct KvTileRow {
  int count;
  int each;  // a chunk
  int chunks;
  int segments;
};

/// Adds a row's KV tiles to its accumulators. Where segments are wide and each chunk has one of the
/// `slots`, all threads sum chunks first, then segments. The whole CTA; `used` is false for columns
/// beyond the row's.
__device__ __forceinline__ void add_kv_tiles(const Accumulators& accumulators,
                                             const PartialLayout& place,
                                             const KvTileRow& row,
                                             int slots,
                                             bool used) {
  const bool wide = row.segments < row.chunks;
  const bool by_slots = wide && row.chunks <= slots;
  const bool whole_segments = wide && !by_slots;
  Accumulators chunks = accumulators;
  chunks.at += kCombineAccumulators * (kVector + 2) * accumulators.threads;
  const int jump =
      whole_segments ? (accumulators.sharers - 1) * kSegmentChunks : accumulators.sharers - 1;
  Sums segment;
#pragma unroll 1
  for (int i = whole_segments ? accumulators.sharer * kSegmentChunks : accumulators.sharer;
       i < row.chunks && used; ++i) {
    const Sums chunk = combine_kv_tiles(place, i, row.each, row.count);
    if (by_slots) {
      chunks.put(i, chunk);
    } else if (!wide) {
      accumulators.add(i, chunk.v, chunk.state);
    } else {
      segment.add(chunk.v, chunk.state);
      if ((i + 1) % kSegmentChunks != 0 && i + 1 < row.chunks) continue;
      accumulators.add(i / kSegmentChunks, segment.v, segment.state);
      segment = Sums();
    }
    i += jump;
  }
  if (!by_slots) return;
  __syncthreads();
#pragma unroll 1
  for (int i = accumulators.sharer; i < row.segments && used; i += accumulators.sharers) {
    const int end = min(row.chunks, (i + 1) * kSegmentChunks);
    for (int j = i * kSegmentChunks; j < end; ++j) {
      const Sums chunk = chunks.get(j);
      segment.add(chunk.v, chunk.state);
    }
    accumulators.add(i, segment.v, segment.state);
    segment = Sums();
  }
}

__device__ __forceinline__ void store_four_quantized(std::uint8_t* to,
                                                     const float (&v)[kVector],
                                                     float scale) {
  *reinterpret_cast<std::uint32_t*>(to) =
      pack_e4m3(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale);
}

/// Writes this thread's columns and, by the first thread of a quantisation block, the block's
/// scale.
__device__ __forceinline__ void store_block_quantized(const RowOutputs& out,
                                                      const int& row,
                                                      const int& column,
                                                      const float (&v)[kVector],
                                                      const float& scale) {
  if (column % kQuantColumns == 0)
    out.block_scales[row * out.block_scales_stride + column / kQuantColumns] = scale;
  store_four_quantized(out.block_quantized + row * out.block_quantized_stride + column, v, scale);
}

/// Where the work tiles of a row, `before` others before them, hold column `column`, which is one
/// of head
/// `head`'s.
__device__ __forceinline__ PartialLayout partial_layout(
    const Attention& p, const int& before, const int& head, const int& group, const int& column) {
  PartialLayout place;
  place.work_tile = static_cast<std::uint32_t>(p.kv_heads * work_tile_floats(group, p.width));
  place.first = p.partial + static_cast<std::int64_t>(before) * place.work_tile +
                static_cast<std::int64_t>(head / group) * work_tile_floats(group, p.width);
  place.sums = head % group * p.width + column % p.width;
  place.state = group * p.width + 2 * (head % group);
  return place;
}

/// sums += the first `used` accumulators, in order.
__device__ __forceinline__ void add_accumulators(Sums& sums,
                                                 const Accumulators& accumulators,
                                                 const int& used) {
  for (int i = 0; i < used; ++i) {
    const Sums more = accumulators.get(i);
    sums.add(more.v, more.state);
  }
}

}  // namespace koho::cuda
