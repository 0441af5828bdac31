// SPDX-License-Identifier: Apache-2.0
// Combines what decode attention found for each row (attention_split_kv.cuh) and writes the row in the
// forms its readers need.
//
//   grid     a cluster of CTAs a row, a CTA some columns; they meet for the row's quantisation.
//            Of few rows 16, where the GPU has such clusters: each multiprocessor brings what it
//            combines at no more than 64 bytes a cycle
//   block    a thread has 4 neighbouring columns; threads of the same columns share the accumulators
//   shared   24 bytes an accumulator and thread, and of few rows as much a chunk whose work tiles are KV tiles
//   bytes    the partial sums once, from L2
//
// Numbers: docs/kernels/README.md, where attention_decode is both kernels.
#include <algorithm>

#include "cuda/attention/attention_split_kv.cuh"
#include "cuda/device/launch.cuh"
#include "cuda/rows/row_epilogue.cuh"

namespace koho::cuda {
namespace {

constexpr int kCluster = 8;
constexpr int kClusterMax = 16;  // of few rows
constexpr int kVector = 4;
constexpr int kThreadsMax = 768;

/// Columns of one CTA: whole quantisation blocks.
constexpr int columns_of_cta(int width, int cluster) {
  return ((width + cluster - 1) / cluster + kQuantColumns - 1) / kQuantColumns * kQuantColumns;
}

/// Threads that share the segments of the same columns: as many as there are accumulators, a block can have
/// and all `ctas` can keep resident, an eighth of the multiprocessors left out: a cluster is of
/// neighbours.
int sharers_of(const Attention& p, int column_threads, std::int64_t ctas, int accumulators) {
  constexpr int kRegisters = 65536 / kThreadsMax / 8 * 8;  // that a thread may have
  const auto resident = [&](int threads) {
    return 65536 / (kRegisters * threads) * (p.multiprocessors - p.multiprocessors / 8);
  };
  int sharers = kCombineAccumulators;
  while (sharers > 1 && (sharers >= 2 * accumulators || column_threads * sharers > kThreadsMax ||
                         ctas > resident(column_threads * sharers)))
    sharers /= 2;
  return sharers;
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

  __device__ __forceinline__ void put(int lane, const Sums& sums) const {
    float* to = at + lane * (kVector + 2) * threads;
    to[0] = sums.v.x;
    to[threads] = sums.v.y;
    to[2 * threads] = sums.v.z;
    to[3 * threads] = sums.v.w;
    to[4 * threads] = sums.state.largest;
    to[5 * threads] = sums.state.total;
  }
  __device__ __forceinline__ Sums get(int lane) const {
    const float* from = at + lane * (kVector + 2) * threads;
    Sums sums;
    sums.v = make_float4(from[0], from[threads], from[2 * threads], from[3 * threads]);
    sums.state = {from[4 * threads], from[5 * threads]};
    return sums;
  }
  /// Combines the row's segment `segment` to its accumulator.
  __device__ __forceinline__ void add(int segment,
                                      const float4& v,
                                      const SoftmaxState& state) const {
    Sums sums;
    if (segment >= kCombineAccumulators) sums = get(segment % kCombineAccumulators);
    sums.add(v, state);
    put(segment % kCombineAccumulators, sums);
  }
};

/// Some of a row's work tiles, `first` to `first + count`: kEach to a segment, but fewer to the last.
struct WorkTileRun {
  int first;
  int count;
  int segment;  // of the first
};

/// Combines those of this thread's segments to their accumulators. kPrefetch are under way at a time.
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
    Partial partials[kSegmentsPrefetched][kEach];
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

/// The sums of chunk `chunk` of a row of `KV tiles` work tiles, which are KV tiles, `each` a chunk.
__device__ __forceinline__ Sums combine_kv_tiles(const PartialLayout& place,
                                                 int chunk,
                                                 int each,
                                                 int kv_tiles) {
  constexpr int kKvTilesPrefetched = 4;
  const int end = min(kv_tiles, (chunk + 1) * each);
  Sums sums;
#pragma unroll 1
  for (int at = chunk * each; at < end; at += kKvTilesPrefetched) {
    Partial partials[kKvTilesPrefetched];
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

/// Combines a row's KV tiles to its accumulators. Where segments are wide and each chunk has one of the `slots`,
/// all threads make chunks first. The whole CTA; columns beyond the row's are not `used`.
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

/// What a row's threads must know: how the step's contexts are cut, and how many work tiles come before
/// the row's.
struct RowWorkTiles {
  bool kv_tiles;
  int segments;  // of the row that are work tiles
  int before;
};

/// All threads; `sums` holds five zeros.
__device__ RowWorkTiles count_work_tiles(const Attention& p, int row, int* sums) {
  int chunks = 0;
  int chunks_before = 0;
  int kv_tiles_before = 0;
  int segments = 0;
  int segments_before = 0;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < p.decodes;
       sequence += static_cast<int>(blockDim.x)) {
    const int context = p.context_lengths[sequence];
    chunks += chunks_of(p, context);
    segments += wide_segments_of(p, context);
    if (sequence >= row) continue;
    chunks_before += chunks_of(p, context);
    kv_tiles_before += kv_tiles_of(context);
    segments_before += wide_segments_of(p, context);
  }
  if (chunks != 0) atomicAdd(&sums[0], chunks);
  if (chunks_before != 0) atomicAdd(&sums[1], chunks_before);
  if (kv_tiles_before != 0) atomicAdd(&sums[2], kv_tiles_before);
  if (segments != 0) atomicAdd(&sums[3], segments);
  if (segments_before != 0) atomicAdd(&sums[4], segments_before);
  __syncthreads();
  if (splits_into_kv_tiles(p, sums[0])) return {true, 0, sums[2]};
  const int work_tiles = segment_work_tiles(p, sums[3]);
  const int before = min(sums[4], work_tiles);
  const int own = row < p.decodes ? wide_segments_of(p, p.context_lengths[row]) : 0;
  return {false, min(own, work_tiles - before), sums[1] - (kSegmentChunks - 1) * before};
}

__device__ __forceinline__ void store_four_quantized(std::uint8_t* to,
                                                     const float (&v)[kVector],
                                                     float scale) {
  *reinterpret_cast<std::uint32_t*>(to) =
      pack_e4m3(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale);
}

__global__ void __launch_bounds__(kThreadsMax, 1) attention_combine_kernel(
    const RowOutputs out, const __grid_constant__ Attention p, int columns, int slots) {
  // [lane][sums, largest, total][thread of the columns]
  extern __shared__ __align__(16) float shared_accumulators[];
  __shared__ __align__(16) float maxima[kRowWarpsMax];  // of all warps that write the row
  __shared__ __align__(8) std::uint64_t told;
  __shared__ int counts[5];
  const int cluster = static_cast<int>(cluster_size());  // a power of two
  const int row = static_cast<int>(blockIdx.x) >> (31 - __clz(cluster));
  const int width = p.query_heads * p.width;
  const int threads = columns / kVector;  // of all columns
  const int sharers = static_cast<int>(blockDim.x) / threads;
  const int sharer = static_cast<int>(threadIdx.x) / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int column = static_cast<int>(cluster_rank()) * columns + thread * kVector;
  const int warps = threads / 32;
  const int context = row < p.decodes ? p.context_lengths[row] : 0;
  if (threadIdx.x < 5) counts[threadIdx.x] = 0;
  if (threadIdx.x == 0 && out.quantized != nullptr) {
    mbarrier_init(shared_address(&told), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(shared_address(&told),
                              static_cast<std::uint32_t>(cluster * warps) * 4);
  }
  __syncthreads();
  if (out.quantized != nullptr) cluster_arrive();
  const RowWorkTiles work_tiles = count_work_tiles(p, row, counts);
  const int chunks = chunks_of(p, context);
  const int head = column / p.width;
  const int group = p.query_heads / p.kv_heads;
  PartialLayout place;
  place.work_tile = static_cast<std::uint32_t>(p.kv_heads * work_tile_floats(group, p.width));
  place.first = p.partial + static_cast<std::int64_t>(work_tiles.before) * place.work_tile +
                static_cast<std::int64_t>(head / group) * work_tile_floats(group, p.width);
  place.sums = head % group * p.width + column % p.width;
  place.state = group * p.width + 2 * (head % group);
  const Accumulators accumulators{shared_accumulators + thread, threads, sharer, sharers};
  pdl_begin();

  const bool wide = chunks > kCombineAccumulators;
  const int segments = wide ? (chunks + kSegmentChunks - 1) / kSegmentChunks : chunks;
  if (work_tiles.kv_tiles) {
    add_kv_tiles(accumulators, place,
                 {kv_tiles_of(context), p.chunk_tokens / kKvTileTokens, chunks, segments}, slots,
                 column < width);
  } else if (column < width) {
    const int own = work_tiles.segments;
    add_work_tiles<1, 6>(accumulators, place, {0, wide ? own : chunks, 0});
    if (wide)
      add_work_tiles<kSegmentChunks, 8>(accumulators, place,
                                        {own, chunks - kSegmentChunks * own, own});
  }
  const int accumulators_used = min(segments, kCombineAccumulators);
  __syncthreads();
  const bool writes = sharer == 0 && column < width;
  float v[kVector] = {};
  float largest = 0.0F;
  if (writes) {
    Sums sums;
    for (int lane = 0; lane < accumulators_used; ++lane) {
      const Sums more = accumulators.get(lane);
      sums.add(more.v, more.state);
    }
    const float sum[kVector] = {sums.v.x, sums.v.y, sums.v.z, sums.v.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = context > 0 ? round_bf16(sum[i] / sums.state.total) : 0.0F;
      largest = fmaxf(largest, fabsf(v[i]));
    }
    if (out.values != nullptr)
      *reinterpret_cast<uint2*>(out.values + row * out.values_stride + column) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  }
  if (out.block_quantized != nullptr) {  // a warp has a block
    const float scale = quant_scale(warp_largest(largest));
    if (writes) {
      if (column % kQuantColumns == 0)
        out.block_scales[row * out.block_scales_stride + column / kQuantColumns] = scale;
      store_four_quantized(out.block_quantized + row * out.block_quantized_stride + column, v,
                           scale);
    }
  }
  if (out.quantized == nullptr) return;
  cluster_wait();  // every CTA has begun
  if (sharer != 0) return;
  // A warp tells all CTAs its largest value: 4 bytes to each.
  const auto lane = threadIdx.x % 32;
  largest = warp_largest(largest);
  if (static_cast<int>(lane) < cluster) {
    const auto place =
        static_cast<int>(cluster_rank()) * warps + static_cast<int>(threadIdx.x) / 32;
    st_async(map_shared_rank(shared_address(&maxima[place]), lane), largest,
             map_shared_rank(shared_address(&told), lane));
  }
  mbarrier_wait_cluster(shared_address(&told), 0);
  for (int i = static_cast<int>(lane); i < cluster * warps; i += 32)
    largest = fmaxf(largest, maxima[i]);
  largest = warp_largest(largest);
  if (writes) {
    const float scale = quant_scale(largest);
    if (column == 0) out.scales[row] = scale;
    store_four_quantized(out.quantized + row * out.quantized_stride + column, v, scale);
  }
}

/// Rows that see nothing: those after all sequences, and those of empty ones that are not decoded.
__global__ void attention_padding_kernel(const __grid_constant__ Attention p) {
  pdl_begin();
  const int width = p.query_heads * p.width;
  const auto clear = [&](std::int64_t row, int first, int step) {
    for (int column = first; column < width; column += step) p.out[row * width + column] = 0;
  };
  for (std::int64_t row = p.query_starts[p.sequences] + static_cast<std::int64_t>(blockIdx.x);
       row < p.tokens; row += gridDim.x)
    clear(row, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int warp = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int warps = static_cast<int>(gridDim.x * blockDim.x) / 32;
  for (int sequence = p.decodes + warp; sequence < p.sequences; sequence += warps) {
    if (p.context_lengths[sequence] != 0) continue;
    for (int row = p.query_starts[sequence]; row < p.query_starts[sequence + 1]; ++row)
      clear(row, static_cast<int>(threadIdx.x) % 32, 32);
  }
}

/// Whether clusters of kClusterMax fit the GPU: more than 8 CTAs need not.
bool supports_wide_clusters(std::size_t shared_bytes) {
  const cudaError_t allowed = cudaFuncSetAttribute(
      attention_combine_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kClusterMax;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kClusterMax);
  config.blockDim = dim3(kThreadsMax);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t found =
      allowed != cudaSuccess
          ? allowed
          : cudaOccupancyMaxActiveClusters(&clusters, attention_combine_kernel, &config);
  if (found != cudaSuccess) cudaGetLastError();  // not the next launch's
  return found == cudaSuccess && clusters > 0;
}

}  // namespace

bool attention_combine_supports(const RowOutputs& out, std::int64_t width) {
  return row_vectors(out, nullptr, 0, width);
}

cudaError_t launch_attention_combine(const RowOutputs& out,
                                     const Attention& p,
                                     std::int64_t rows,
                                     cudaStream_t stream) {
  constexpr int kSlotBytes = (kVector + 2) * static_cast<int>(sizeof(float));
  // kv_heads * kChunkThreads are enough for a CTA's columns.
  constexpr int kChunkThreads = 16 * 128 / kCluster / kVector;
  constexpr int kSharedMax =
      (columns_of_cta(kCombineWidthMax, kCluster) / kVector * kCombineAccumulators +
       kChunkThreads * kTileSplitChunksMax) *
      kSlotBytes;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once(
      [] { return allow_dynamic_shared_memory(attention_combine_kernel, kSharedMax); });
  if (ready != cudaSuccess) return ready;
  static PerDevice clusters;
  const int widest =
      clusters.number([] { return supports_wide_clusters(kSharedMax) ? kClusterMax : kCluster; });
  const int cluster = 4 * rows * widest <= p.multiprocessors ? widest : kCluster;
  const int columns = columns_of_cta(p.query_heads * p.width, cluster);
  const int threads = columns / kVector;
  const int chunks = (p.context_max + p.chunk_tokens - 1) / p.chunk_tokens;
  const int sharers =
      sharers_of(p, threads, rows * cluster, std::min(chunks, kCombineAccumulators));
  // Room for chunks of KV tiles where it keeps few kernels from a multiprocessor.
  const bool few = 4 * rows * kCluster <= p.multiprocessors;
  const int slots = few ? std::min(chunks, kTileSplitChunksMax / p.kv_heads) : 0;
  return launch_kernel(
      attention_combine_kernel,
      {dim3(static_cast<unsigned>(rows * cluster)), dim3(static_cast<unsigned>(threads * sharers)),
       static_cast<std::size_t>(threads * (kCombineAccumulators + slots) * kSlotBytes), cluster},
      stream, out, p, columns, slots);
}

cudaError_t launch_attention_padding(const Attention& p, cudaStream_t stream) {
  constexpr int kBlocks = 8;
  return launch_kernel(attention_padding_kernel, {dim3(kBlocks), dim3(256)}, stream, p);
}

const void* kernel_of::attention_combine() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
