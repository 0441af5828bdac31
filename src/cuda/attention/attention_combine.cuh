// SPDX-License-Identifier: Apache-2.0
// The steps of attention_combine.cu: which partial sums are a row's, how threads add them to the
// row's eight accumulators, and how a cluster finds the row's largest value.
#pragma once

#include "cuda/attention/attention_split_kv.cuh"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {

constexpr int kCluster = 8;
constexpr int kClusterMax = 16;  // of few rows
constexpr int kVector = 4;
constexpr int kThreadsMax = 768;
constexpr int kManyThreadsMax = 384;  // has_many_contexts()

/// Columns of one CTA: whole quantisation blocks.
constexpr int columns_of_cta(int width, int cluster) {
  return ((width + cluster - 1) / cluster + kQuantColumns - 1) / kQuantColumns * kQuantColumns;
}

static_assert(columns_of_cta(kCombineWidthMax, kCluster) / kVector <= kThreadsMax);
/// Warps that write a row.
constexpr int kRowWarpsMax = kCombineWidthMax / kVector / 32 + kClusterMax;
static_assert(kQuantColumns == 32 * kVector);  // a warp has whole blocks

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

/// How the step's contexts are split, and how many work tiles come before the row's.
struct RowWorkTiles {
  bool kv_tiles;
  int whole_tokens;  // a context of up to so many is one work tile, any longer one several
  int segments;      // of the row that are work tiles
  int before;
};

/// What the CTA adds up of the contexts, in shared memory. Zeros at first.
template <bool kMany>
struct ContextCounts {
  int chunks;
  int chunks_before;  // before the row, as all that follow
  int kv_tiles_before;
  int segments;
  int segments_before;
};
template <>
struct ContextCounts<true> : ContextCounts<false> {
  int contexts_before;  // as work tiles where short ones are whole
  ContextSums sums;
};

/// Adds to `counts`. All threads.
template <bool kMany>
static __device__ void count_contexts(const Attention& p, int row, ContextCounts<kMany>& counts) {
  int chunks = 0;
  int chunks_before = 0;
  int kv_tiles_before = 0;
  int segments = 0;
  int segments_before = 0;
  int contexts_before = 0;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < p.decodes;
       sequence += static_cast<int>(blockDim.x)) {
    const int context = p.context_lengths[sequence];
    chunks += chunks_of(p, context);
    segments += wide_segments_of(p, context);
    if (sequence >= row) continue;
    chunks_before += chunks_of(p, context);
    kv_tiles_before += kv_tiles_of(context);
    segments_before += wide_segments_of(p, context);
    if (kMany && context > 0) contexts_before += is_short(p, context) ? 1 : chunks_of(p, context);
  }
  if (chunks != 0) atomicAdd(&counts.chunks, chunks);
  if (chunks_before != 0) atomicAdd(&counts.chunks_before, chunks_before);
  if (kv_tiles_before != 0) atomicAdd(&counts.kv_tiles_before, kv_tiles_before);
  if (segments != 0) atomicAdd(&counts.segments, segments);
  if (segments_before != 0) atomicAdd(&counts.segments_before, segments_before);
  if constexpr (kMany) {
    if (contexts_before != 0) atomicAdd(&counts.contexts_before, contexts_before);
    const ContextSums sums = sum_contexts_of_thread(p, static_cast<int>(blockDim.x));
    if (sums.all == 0) return;
    atomicAdd(&counts.sums.all, sums.all);
    atomicAdd(&counts.sums.of_short, sums.of_short);
    atomicMax(&counts.sums.fullest, sums.fullest);
  }
}

/// What follows from `counts` once all threads have added.
template <bool kMany>
static __device__ RowWorkTiles row_work_tiles(const Attention& p,
                                              int row,
                                              const ContextCounts<kMany>& counts) {
  if (splits_into_kv_tiles(p, counts.chunks))
    return {true, kKvTileTokens, 0, counts.kv_tiles_before};
  if constexpr (kMany)
    if (keeps_contexts_whole(p, counts.chunks, counts.sums))
      return {false, kCombineAccumulators * p.chunk_tokens, 0, counts.contexts_before};
  const int work_tiles = segment_work_tiles(p, counts.segments);
  const int before = min(counts.segments_before, work_tiles);
  const int own = row < p.decodes ? wide_segments_of(p, p.context_lengths[row]) : 0;
  return {false, p.chunk_tokens, min(own, work_tiles - before),
          counts.chunks_before - (kSegmentChunks - 1) * before};
}

/// The rows whose contexts are several work tiles: a bit each.
struct SplitRows {
  std::uint32_t words[kSequencesMax / 32];

  /// All threads; the caller synchronises.
  __device__ __forceinline__ void list(const Attention& p, const int& whole_tokens) {
    for (int sequence = static_cast<int>(threadIdx.x); sequence < (p.decodes + 31) / 32 * 32;
         sequence += static_cast<int>(blockDim.x)) {
      const bool split = sequence < p.decodes && p.context_lengths[sequence] > whole_tokens;
      const std::uint32_t word = __ballot_sync(0xFFFFFFFFU, split);
      if (sequence % 32 == 0) words[sequence / 32] = word;
    }
  }
  /// The row that comes as number `index`, or -1.
  [[nodiscard]] __device__ __forceinline__ int find(const Attention& p, int index) const {
    for (int first = 0; first < p.decodes; first += 32) {
      const std::uint32_t word = words[first / 32];
      if (index >= __popc(word)) {
        index -= __popc(word);
        continue;
      }
      std::uint32_t left = word;
      for (; index > 0; --index) left &= left - 1;
      return first + __ffs(static_cast<int>(left)) - 1;
    }
    return -1;
  }
};

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

/// Where the work tiles of a row, `before` others before them, hold column `column`.
__device__ __forceinline__ PartialLayout partial_layout(const Attention& p,
                                                        const int& before,
                                                        const int& column) {
  const int head = column / p.width;
  const int group = p.query_heads / p.kv_heads;
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

/// How the CTAs that share a row tell each other its largest value: each warp sends its own to
/// every one of them (st.async, 4 bytes) and waits for those of the others.
struct RowExchange {
  float* maxima;       // [CTAs, warps], of all
  std::uint32_t told;  // mbarrier
  int first;           // rank of the first of the CTAs in their cluster
  int ctas;
  int warps;  // of a CTA that write the row

  /// One thread, before each exchange.
  __device__ __forceinline__ void arm() const {
    mbarrier_arrive_expect_tx(told, static_cast<std::uint32_t>(ctas * warps) * 4);
  }
  /// The row's largest magnitude. All `warps`. `parity`: of how often it was called before.
  __device__ __forceinline__ float largest(float of_thread, std::uint32_t parity) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float found = warp_largest(of_thread);
    if (lane < ctas) {
      const auto to = static_cast<std::uint32_t>(first + lane);
      const int place =
          (static_cast<int>(cluster_rank()) - first) * warps + static_cast<int>(threadIdx.x) / 32;
      st_async(map_shared_rank(shared_address(maxima + place), to), found,
               map_shared_rank(told, to));
    }
    mbarrier_wait_cluster(told, parity);
    for (int i = lane; i < ctas * warps; i += 32) found = fmaxf(found, maxima[i]);
    return warp_largest(found);
  }
};

/// The exchanges of rows that all CTAs of a cluster share one after another. Two take turns: before
/// a CTA sends for the next row but one, every warp of the others has sent for the next, so it is
/// done with this one.
struct SplitRowExchanges {
  alignas(16) float maxima[2][kRowWarpsMax];
  std::uint64_t told[2];

  /// Of the row that comes as number `turn`.
  [[nodiscard]] __device__ __forceinline__ RowExchange exchange(int turn) {
    return {maxima[turn % 2], shared_address(&told[turn % 2]), 0, static_cast<int>(cluster_size()),
            static_cast<int>(blockDim.x) / 32};
  }
  /// One thread each: before the barriers' fence, and behind it.
  __device__ __forceinline__ void init() {
    for (std::uint64_t& barrier : told) mbarrier_init(shared_address(&barrier), 1);
  }
  __device__ __forceinline__ void arm() {
    for (int i = 0; i < 2; ++i) exchange(i).arm();
  }
  __device__ __forceinline__ float largest(float of_thread, int turn) {
    const RowExchange of_row = exchange(turn);
    const float found = of_row.largest(of_thread, static_cast<std::uint32_t>(turn / 2 % 2));
    if (threadIdx.x == 0) of_row.arm();
    return found;
  }
};

/// Combines this thread's partial sums of a row to its accumulators. The whole CTA; `used` is false
/// for columns beyond the row's. Returns how many accumulators the row has.
__device__ __forceinline__ int add_row(const Attention& p,
                                       const RowWorkTiles& work_tiles,
                                       const int& context,
                                       const Accumulators& accumulators,
                                       const PartialLayout& place,
                                       const int& slots,
                                       const bool& used) {
  const int chunks = chunks_of(p, context);
  const bool wide = chunks > kCombineAccumulators;
  const int segments = wide ? (chunks + kSegmentChunks - 1) / kSegmentChunks : chunks;
  if (work_tiles.kv_tiles) {
    add_kv_tiles(accumulators, place,
                 {kv_tiles_of(context), p.chunk_tokens / kKvTileTokens, chunks, segments}, slots,
                 used);
  } else if (used) {
    const int own = work_tiles.segments;
    add_work_tiles<1, 6>(accumulators, place, {0, wide ? own : chunks, 0});
    if (wide)
      add_work_tiles<kSegmentChunks, 8>(accumulators, place,
                                        {own, chunks - kSegmentChunks * own, own});
  }
  return min(segments, kCombineAccumulators);
}

/// Four columns of a row, rounded to bf16, and their largest magnitude.
struct RowColumns {
  float v[kVector] = {};
  float largest = 0.0F;

  __device__ __forceinline__ void set(const Sums& sums, const bool& has_context) {
    const float sum[kVector] = {sums.v.x, sums.v.y, sums.v.z, sums.v.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = has_context ? round_bf16(sum[i] / sums.state.total) : 0.0F;
      largest = fmaxf(largest, fabsf(v[i]));
    }
  }
  /// Stores what needs nothing of other columns but a warp's. `writes`: this thread has columns.
  __device__ __forceinline__ void store(const RowOutputs& out,
                                        const int& row,
                                        const int& column,
                                        const bool& writes) const {
    if (writes && out.values != nullptr)
      *reinterpret_cast<uint2*>(out.values + row * out.values_stride + column) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    if (out.block_quantized != nullptr) {  // a warp has a block
      const float scale = quant_scale(warp_largest(largest));
      if (writes) store_block_quantized(out, row, column, v, scale);
    }
  }
  /// Stores FP8 with a scale a row.
  __device__ __forceinline__ void store_quantized(const RowOutputs& out,
                                                  const int& row,
                                                  const int& column,
                                                  const float& row_largest) const {
    const float scale = quant_scale(row_largest);
    if (column == 0) out.scales[row] = scale;
    store_four_quantized(out.quantized + row * out.quantized_stride + column, v, scale);
  }
};
}  // namespace koho::cuda
